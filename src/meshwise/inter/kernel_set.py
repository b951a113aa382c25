"""Compile the kernels of the planner across meshes ahead of time, and those below it."""

from __future__ import annotations

import math

import numpy as np

from meshwise.assignment import kernel_set as assignment
from meshwise.inter.search.best_cuts import best_cuts
from meshwise.inter.stages.stage_construction import build_stages_below
from meshwise.inter.stages.stage_problem import StageCosts, StageProblem
from meshwise.inter.stages.submeshes import StageSubmesh
from meshwise.kernels.background import KernelSet
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.simulate.links import Flow, HostLinks
from meshwise.simulate.pipeline import PricedPipeline
from meshwise.simulate.stages import StageBoundary, StageCost

KERNELS = KernelSet(package="inter", module=__name__, parts=("compile_stages",))
# What a plan needs late: it can be compiled while a step is traced and layers are looked at.
LATE = KernelSet(package="planning", module=__name__, parts=("compile_late",))


def compile_all_kernels() -> None:
    """Compile every kernel of Meshwise that is not yet kept; a minute at most, then nothing."""
    for kernels in (assignment.KERNELS, KERNELS, LATE):
        kernels.compile()


def compile_late() -> None:
    """Compile the choice of stages, and what solves layers that reductions do not settle."""
    compile_stages()
    best_cuts(np.ones((2, 2)), 2)
    assignment.compile_bounds()
    compile_simulator()


def compile_simulator() -> None:
    """Compile the simulator, by a step in which two flows share a card."""
    stages = [StageCost(forward_s=1.0, backward_s=1.0)] * 2
    both = (Flow(0, 1, 1.0), Flow(0, 1, 1.0))
    hosts = [HostLinks(nic_bytes_per_s=1.0, link_bytes_per_s=1.0)] * 2
    joined = [StageBoundary(source=0, destination=1, forward=both)]
    PricedPipeline(stages, joined, hosts).simulate(ONE_F_ONE_B.table(2, 1, 2))


def compile_stages() -> None:
    """Compile the choice of stages, by cutting two layers."""
    ones = np.ones((2, 2, 2, 1))
    costs = StageCosts(
        submeshes=tuple(
            StageSubmesh(num_hosts=1, devices_per_host=n, memory_bytes=8.0) for n in (1, 2)
        ),
        microbatch_s=ones,
        once_s=ones,
        resident_bytes=ones,
        microbatch_bytes=ones,
        temporary_bytes=ones,
    )
    # A fixed number of stages needs every kernel.
    problem = StageProblem(costs=costs, num_devices=2, num_microbatches=2)
    build_stages_below(problem, math.inf, num_stages=2)
