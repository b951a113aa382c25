"""After `KERNELS.compile` no problem needs another specialisation of a kernel."""

from __future__ import annotations

from evaluation.baselines.built_stages import build_stages

from doubles.kernels import compiled
from meshwise.errors import InfeasibleError
from meshwise.inter.kernel_set import KERNELS as SET
from meshwise.inter.stages.kernels import stage_kernels
from oracle.stage_problems import random_problem

KERNELS = (
    stage_kernels.least_fill_of_groups,
    stage_kernels.cost_to_end,
    stage_kernels.stages_of_bound,
    stage_kernels.cheapest_stages,
)


def test_one_specialisation_does():
    SET.compile()
    for seed in range(40):
        problem = random_problem(seed, mixed=seed % 2 == 1, max_layers=4)
        for mode, count in (("alpa", None), ("time", None), ("time", 2)):
            try:
                build_stages(problem, mode, num_stages=count)
            except InfeasibleError:
                continue
    assert [len(compiled(kernel).nopython_signatures) for kernel in KERNELS] == [1] * len(KERNELS)
