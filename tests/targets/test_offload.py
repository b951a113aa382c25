"""State in the memory of hosts takes none of a GPU, by the compiler too."""

from __future__ import annotations

import pytest

import meshwise as mw
from doubles.adam_step import adam_step, shapes
from meshwise.targets.verification import Verification
from meshwise.units import MIB

CLUSTER = mw.Cluster.virtual("1x dgx-h100")
STATE, BATCH = shapes((2048,) * 9)
# Of one device, each matrix split over all eight: two moments for each of eight.
MOMENTS = 2 * 8 * 2048 * 2048 * 4 // 8
# What a product of cuBLAS has beside its result, which is not predicted.
WORKSPACE = 32 * MIB


def verified(*, offload: bool) -> tuple[mw.Plan, Verification]:
    step = mw.parallelize(adam_step(), method=mw.Auto(offload=offload), cluster=CLUSTER)
    return step.plan(STATE, BATCH), step.verify(STATE, BATCH)


@pytest.mark.usefixtures("gpu_compiler")
def test_the_memory_of_a_gpu_falls_by_what_the_update_does_not_hold() -> None:
    free, with_state = verified(offload=False)
    asked, without = verified(offload=True)
    (before,), (after,) = with_state.programs, without.programs
    assert before.memory.argument_bytes - after.memory.argument_bytes >= MOMENTS
    assert before.memory.alias_bytes - after.memory.alias_bytes >= MOMENTS
    # The moments of two parameters are there at once, with what becomes of them.
    saved = with_state.compiled_bytes - without.compiled_bytes
    assert saved >= MOMENTS * (1 - 4 / 8)
    assert without.compiled_bytes - WORKSPACE <= asked.peak_bytes < free.peak_bytes


@pytest.mark.slow
@pytest.mark.usefixtures("gpu_compiler")
def test_a_layer_of_a_pipeline_updates_what_comes_from_the_host() -> None:
    held: list[int] = []
    for offload in (False, True):
        method = mw.Auto(stages=2, offload=offload)
        more = {"cluster": CLUSTER, "num_microbatches": 2}
        found = mw.parallelize(adam_step(), method=method, **more).verify(STATE, BATCH)
        held.append(found.compiled_bytes)
        updates = [p.memory for p in found.programs if p.name.startswith("apply")]
        assert updates
        # Matrix and gradient, and two moments, of 4 devices.
        parts = 2 if offload else 4
        matrix = 2048 * 2048 * 4 // 4
        assert all(parts * matrix <= m.argument_bytes < (parts + 1) * matrix for m in updates)
    # A stage has half of the moments on half of the devices.
    assert held[0] - held[1] >= MOMENTS * 3 // 4
