"""From the options of a run to the parallelised step, through the public API."""

from __future__ import annotations

import meshwise as mw
from meshwise.plan.plan import Plan
from meshwise.request.methods import Method
from meshwise.train.options import TrainOptions
from meshwise.train.parallel import HeldoutLoss, ParallelTrainStep, StepBuilder, TrainStep


def method_of(options: TrainOptions) -> Method:
    """Return the method object that a name stands for.

    Raises:
        ValueError: the name is not one of `TrainOptions.method`.
    """
    match options.method.partition(":"):
        case ("auto", "", "") if options.mesh is None:
            return mw.Auto(
                stages=options.stages, schedule=options.schedule, offload=options.offload
            )
        case ("auto", "", ""):
            return mw.IntraOp(mesh_shape=options.mesh)
        case ("intra", "", ""):
            return mw.IntraOp(mesh_shape=options.mesh)
        case ("data", "", ""):
            return mw.DataParallel()
        case ("zero2", "", ""):
            return mw.Zero2()
        case ("zero3", "", ""):
            return mw.Zero3()
        case ("heuristic", "", ""):
            return mw.Heuristic(mesh_shape=options.mesh)
        case ("megatron", ":", shape):
            dp, tp = map(int, shape.split("x"))
            return mw.Megatron(dp=dp, tp=tp)
        case _:
            raise ValueError(f"no method {options.method!r}")


def step_builder(options: TrainOptions) -> StepBuilder:
    """Return the function that parallelises a training step.

    Args:
        options: The options of the run.

    Returns:
        A function of the step and of the plan that it is to have, if there is one; it calls
        `parallelize`.
    """

    def build(train_step: TrainStep, plan: Plan | None = None) -> ParallelTrainStep:
        return mw.parallelize(
            train_step,
            method=method_of(options) if plan is None else mw.Replay(plan),
            cluster=options.cluster,
            num_microbatches=options.num_microbatches if plan is None else plan.num_microbatches,
            memory_bytes=options.memory_bytes,
            dump_ilp=options.dump_ilp,
        )

    return build


def followed(plan: Plan, loss: HeldoutLoss) -> HeldoutLoss:
    """Return the held-out loss on the devices where a training step has its parameters.

    Args:
        plan: The plan of the step.
        loss: The loss.
    """
    return mw.parallelize(loss, method=mw.Follow(plan))
