"""Names and sizes of schedules, and what is said when they are wrong."""

from __future__ import annotations

import pytest

from meshwise.errors import PlanError
from meshwise.schedules.registry import make_schedule, tables


@pytest.mark.parametrize("name", tables())
def test_a_schedule_bears_the_name_under_which_it_is_found(name):
    stages = 2 * tables()[name].chunks
    schedule = make_schedule(name, num_stages=stages, num_microbatches=4, num_meshes=2)
    assert schedule.name == name
    assert (schedule.num_stages, schedule.num_microbatches, schedule.num_meshes) == (stages, 4, 2)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(PlanError, match="named '1f2b'; known are 1f1b, gpipe, eager-1f1b, zero"):
        make_schedule("1f2b", num_stages=2, num_microbatches=2)


@pytest.mark.parametrize("name", tables())
@pytest.mark.parametrize(
    ("stages", "microbatches", "meshes", "message"),
    [
        (0, 2, 1, "0 stages; at least 1"),
        (2, 0, 2, "0 micro-batches; at least 1"),
        (2, 2, 0, "0 meshes; at least 1"),
        (2, 3, 3, "3 meshes for 2 stages"),
    ],
)
def test_impossible_sizes_are_refused(name, stages, microbatches, meshes, message):
    with pytest.raises(PlanError, match=f"schedule {name}: {message}"):
        make_schedule(name, num_stages=stages, num_microbatches=microbatches, num_meshes=meshes)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "eager-1f1b", "zero-bubble-h1"])
def test_several_stages_a_mesh_are_refused_with_what_to_do(name):
    with pytest.raises(PlanError, match="one stage a mesh, not 4 stages on 2 meshes; give one"):
        make_schedule(name, num_stages=4, num_microbatches=4, num_meshes=2)


@pytest.mark.parametrize("name", ["zb-v", "dualpipe-v"])
def test_a_v_has_two_stages_a_mesh(name):
    with pytest.raises(PlanError, match="two stages a mesh, not 4 stages on 4 meshes; give two"):
        make_schedule(name, num_stages=4, num_microbatches=4)


def test_interleaved_1f1b_needs_multiples_of_the_meshes():
    with pytest.raises(PlanError, match="6 micro-batches are no multiple of 4 meshes"):
        make_schedule("interleaved-1f1b", num_stages=8, num_microbatches=6, num_meshes=4)
    with pytest.raises(PlanError, match="6 stages are no multiple of 4 meshes"):
        make_schedule("interleaved-1f1b", num_stages=6, num_microbatches=8, num_meshes=4)
