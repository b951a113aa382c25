"""What the error says where no stages fit."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from evaluation.baselines.built_stages import build_stages, least_sum

from doubles.submesh_kinds import HostKind, mixed_submeshes, uniform_submeshes
from meshwise.errors import InfeasibleError
from meshwise.inter.stages.stage_problem import StageCosts, StageProblem
from meshwise.schedules.gpipe import GPIPE

GIB = 2.0**30


def problem(num_layers=3, num_devices=4, memory=8 * GIB, **changes):
    """Layers of one second, 2 GiB of state and 1 GiB of activations, divided by the devices."""
    submeshes = uniform_submeshes(1, num_devices, memory)
    shape = (num_layers, num_layers, len(submeshes), 1)
    first, last, kind, _ = np.indices(shape)
    length = np.where(last >= first, last - first + 1.0, np.inf)
    share = length / np.array([m.num_devices for m in submeshes])[kind]
    held = np.where(np.isfinite(share), share, 0.0)
    return replace(
        StageProblem(
            costs=StageCosts(
                submeshes=submeshes,
                microbatch_s=share,
                once_s=0.1 * held,
                resident_bytes=2 * GIB * held,
                microbatch_bytes=GIB * held,
                temporary_bytes=0 * held,
            ),
            num_devices=num_devices,
            num_microbatches=8,
        ),
        **changes,
    )


def test_a_layer_that_fits_nowhere():
    given = problem()
    resident = given.costs.resident_bytes.copy()
    # Layer 1 needs 40 GiB on every submesh, in each stage that holds it.
    resident[:2, 1:] += 40 * GIB
    with pytest.raises(InfeasibleError, match="layer 1 does not fit into memory") as caught:
        build_stages(replace(given, costs=replace(given.costs, resident_bytes=resident)))
    # 40 GiB, and (2 + 1) GiB on 4 devices.
    text = "in a last stage of layers 1 to 1 on submesh (1,4), is 40.8 GiB a device of 8 GiB"
    assert text in str(caught.value)


def test_a_layer_without_any_cost():
    given = problem()
    times = given.costs.microbatch_s.copy()
    times[:3, 2:] = np.inf
    with pytest.raises(InfeasibleError, match="layer 2 runs on no submesh"):
        build_stages(replace(given, costs=replace(given.costs, microbatch_s=times)))


def test_devices_that_cannot_all_be_used():
    given = problem(num_layers=1, num_devices=4, use_all_devices=True)
    times = given.costs.microbatch_s.copy()
    times[:, :, 2] = np.inf
    given = replace(given, costs=replace(given.costs, microbatch_s=times))
    with pytest.raises(InfeasibleError, match="1 layer cannot be cut into stages that use all 4"):
        build_stages(given)
    assert build_stages(replace(given, use_all_devices=False)).total_s > 0
    with pytest.raises(InfeasibleError, match="cut into 2 stages that use at most 4 devices"):
        build_stages(problem(num_layers=1), num_stages=2)


def test_memory_that_no_stages_share_out():
    # GPipe holds 8 micro-batches: 2 + 8 GiB a layer, 30 GiB in all on 4 devices of 7 GiB.
    given = problem(memory=7 * GIB, schedule=GPIPE)
    with pytest.raises(InfeasibleError, match=r"no stages fit into memory; with 1\.\d+ times") as e:
        build_stages(given)
    # One stage on all devices needs 30 / 4 GiB of the 7: 1.07 times the memory.
    text = str(e.value)
    assert "with 1.08 times the memory 1 would" in text
    assert "stage 0, layers 0 to 2 on submesh (1,4): it needs 7.5 GiB a device" in text
    assert (
        "(1.5 GiB resident, 8 micro-batches in flight of 768 MiB, 0 B temporary) of 7 GiB" in text
    )
    assert build_stages(problem(memory=7.5 * GIB, schedule=GPIPE)).total_s > 0


def test_the_paper_counts_stages_and_not_micro_batches():
    # Six stages of one device: the first holds 6 micro-batches of 1 GiB, with B = 2 only two.
    given = replace(problem(num_layers=4, memory=4.5 * GIB), num_microbatches=2)
    assert len(build_stages(given, num_stages=4).stages) == 4
    with pytest.raises(InfeasibleError):
        build_stages(given, "alpa", num_stages=4)


def test_layers_that_do_not_fit_together():
    # 6 layers with 2 GiB of state on 4 devices of 2.5 GiB; each alone fits, 12 GiB do not.
    given = problem(num_layers=6, memory=2.5 * GIB)
    bytes_ = given.costs.microbatch_bytes / 100
    given = replace(given, costs=replace(given.costs, microbatch_bytes=bytes_))
    with pytest.raises(InfeasibleError, match="do not fit into the cluster together") as caught:
        build_stages(given)
    text = "need at least 12 GiB, and 4 devices have 10 GiB; 2 times as many hosts have as much"
    assert text in str(caught.value)
    assert build_stages(replace(given, costs=_with_memory(given.costs, 3.2 * GIB))).total_s > 0


def _with_memory(costs, memory):
    return replace(costs, submeshes=tuple(replace(m, memory_bytes=memory) for m in costs.submeshes))


def test_least_sum_of_runs_that_hold_every_layer():
    rng = np.random.default_rng(0)
    whole = rng.uniform(1, 3, (4, 4))
    cuts = [[0, *c, 4] for n in range(4) for c in itertools.combinations(range(1, 4), n)]
    sums = [sum(whole[a, b - 1] for a, b in itertools.pairwise(c)) for c in cuts]
    assert least_sum(whole) == pytest.approx(min(sums))


@pytest.mark.parametrize(
    ("given", "num_stages", "remedy"),
    [
        (problem(num_layers=2), 3, "ask for at most 2 stages"),
        (problem(num_layers=6, num_devices=4), 5, "ask for at most 4 stages"),
        (problem(num_layers=1, num_devices=4, use_all_devices=True), None, "devices may stay idle"),
    ],
)
def test_remedies_where_the_number_of_devices_is_in_the_way(given, num_stages, remedy):
    if num_stages is None:
        times = given.costs.microbatch_s.copy()
        times[:, :, 2] = np.inf
        given = replace(given, costs=replace(given.costs, microbatch_s=times))
    with pytest.raises(InfeasibleError, match=remedy):
        build_stages(given, num_stages=num_stages)


def test_hosts_that_leave_a_rest_of_devices():
    """Two hosts of 4 and 8 devices: no submesh of both has all 12, and one stage is asked for."""
    hosts = [HostKind(kind="a", num_devices=n, memory_bytes=GIB) for n in (4, 8)]
    submeshes = mixed_submeshes(hosts)
    shape = (2, 2, len(submeshes), 1)
    nothing = np.zeros(shape)
    given = StageProblem(
        costs=StageCosts(
            submeshes=submeshes,
            microbatch_s=np.ones(shape),
            once_s=nothing,
            resident_bytes=nothing,
            microbatch_bytes=nothing,
            temporary_bytes=nothing,
        ),
        num_devices=12,
        num_microbatches=2,
        use_all_devices=True,
    )
    with pytest.raises(InfeasibleError, match="1 stage that uses all 12.*may stay idle"):
        build_stages(given, num_stages=1)
