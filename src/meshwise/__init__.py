"""Meshwise: plans and runs JAX training steps on many devices."""

from meshwise.api import ParallelStep as ParallelStep
from meshwise.api import parallelize as parallelize
from meshwise.cluster.spec import Cluster as Cluster
from meshwise.methods import Auto as Auto
from meshwise.methods import DataParallel as DataParallel
from meshwise.methods import Heuristic as Heuristic
from meshwise.methods import IntraOp as IntraOp
from meshwise.methods import Megatron as Megatron
from meshwise.methods import Replay as Replay
from meshwise.methods import Zero2 as Zero2
from meshwise.methods import Zero3 as Zero3
from meshwise.plan.plan import Plan as Plan
from meshwise.spmd.specs import partition_specs as partition_specs
from meshwise.trace.loss import grad as grad
from meshwise.trace.loss import value_and_grad as value_and_grad
