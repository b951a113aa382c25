"""Compiles the kernels ahead of time, by cutting two layers."""

from __future__ import annotations

import numpy as np

from meshwise.inter.stages.stage_construction import build_stages
from meshwise.inter.stages.stage_problem import StageCosts, StageProblem
from meshwise.inter.stages.submeshes import uniform_submeshes


def compile_kernels() -> None:
    """Compile what is not yet kept; 20 seconds at most, then nothing."""
    ones = np.ones((2, 2, 2, 1))
    costs = StageCosts(
        submeshes=uniform_submeshes(1, 2, 8.0),
        microbatch_s=ones,
        once_s=ones,
        resident_bytes=ones,
        microbatch_bytes=ones,
        temporary_bytes=ones,
    )
    # A fixed number of stages needs every kernel.
    build_stages(StageProblem(costs=costs, num_devices=2, num_microbatches=2), num_stages=2)
