"""The filed clusters of two kinds of hosts: never worse than treating all devices as the slowest.

Costs of layers are formulas of the logical mesh here, so that nothing is traced; real layers are
planned in `benchmarks/mixed_clusters.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from benchmarks.mixed_clusters import layers_and_options, on_real_devices
from evaluation.baselines.built_stages import build_stages

from doubles.few import few_or_all
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import InfeasibleError
from meshwise.inter.cost_table.variant import Variant
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.layer_cost.footprint import Footprint
from meshwise.inter.layer_cost.run_bounds import RunBounds
from meshwise.inter.layer_cost.run_costs import RunCosts
from meshwise.inter.layer_cost.state_costs import BytePrice
from meshwise.inter.search.finishing import finished
from meshwise.inter.search.search import search
from meshwise.inter.search.search_space import SearchOptions, submeshes_of
from meshwise.inter.stages.directions import build_either_way, mirrored
from meshwise.inter.stages.transfers import bytes_per_s
from meshwise.intra.options import IntraOptions
from oracle.stage_problems import brute_force, random_problem

FILES = sorted((Path(__file__).parents[3] / "examples" / "clusters").glob("*.toml"))
NUM_LAYERS, BATCH, NUM_MICROBATCHES = 34, 256, 32


@dataclass(frozen=True)
class Blocks:
    """A transformer of hidden size 4096: an embedding, blocks, a wide last layer."""

    classes: tuple[int, ...] = (0, *(1,) * (NUM_LAYERS - 2), NUM_LAYERS - 1)

    def crossing_bytes(self, layer):
        return BATCH * 1024 * 4096 * 2

    def graph(self, first, last, num_microbatches, remat="none"):
        raise AssertionError("nothing is planned")


class Formulas(VariantCosts):
    """Seconds and bytes of layers in closed form, monotone in every number of a device."""

    is_shareable = False

    def trace(self, remat, num_microbatches):
        pass

    def runs(self, variant, num_microbatches, wanted=None):
        del wanted
        mesh = variant.mesh
        n, count = mesh.num_devices, len(self.source.classes)
        rows = BATCH / num_microbatches
        wide = 4096.0**2
        weights = np.array([25.0, *(12.0,) * (count - 2), 25.0]) * wide
        flop = 6 * rows * 1024 * np.where(np.arange(count) == 0, 0.1, 1.0) * weights
        held = 34.0 * rows * 1024 * 4096
        # Two passes of an activation over the last axis, gradients once over the first.
        slow, fast = mesh.axes[0], mesh.axes[-1]
        passes = 8 * (rows * 1024 * 4096 * 2 / n / fast.link_bytes_per_s + fast.latency_s)
        alone = 0.0 if n == 1 else 1.0
        layer = flop / (n * mesh.device.rate("float16")) + 3 * held / (
            n * mesh.device.memory_bytes_per_s
        )
        layer = layer + alone * passes
        once = alone * (4 * weights / fast.size / slow.link_bytes_per_s + slow.latency_s)

        def summed(values):
            ends = np.concatenate(([0.0], np.cumsum(np.broadcast_to(values, count))))
            total = ends[None, 1:] - ends[:-1, None]
            return np.where(np.tri(count, k=-1, dtype=bool), np.inf, total)

        loop = summed(layer) * num_microbatches
        return RunCosts(
            cost_s=loop,
            loop_s=loop,
            gather_s=np.zeros_like(loop),
            once_s=summed(once),
            resident_bytes=summed(16 * weights / n),
            microbatch_bytes=summed(held / n),
            temporary_bytes=summed(held / n / count),
        )

    def held(self, variant, num_microbatches, first, last):
        runs = self.runs(variant, num_microbatches)
        return Footprint(
            resident_bytes=runs.resident_bytes[first, last],
            microbatch_bytes=runs.microbatch_bytes[first, last],
            temporary_bytes=runs.temporary_bytes[first, last],
        )

    def bounds(self, mesh, remat, num_microbatches):
        runs = self.runs(Variant(mesh=mesh, remat=remat, price=BytePrice()), num_microbatches)
        return RunBounds(
            loop_s=0.9 * runs.loop_s,
            resident_bytes=runs.resident_bytes,
        )

    def layer(self, key):
        """What a closer look finds: nearer to the truth than bounds."""
        c, way, count = key
        runs = self.runs(way, count)
        seconds = 0.97 * (runs.loop_s[c, c] + runs.once_s[c, c])
        return SimpleNamespace(proved_s=np.array([[seconds]]), is_exact=np.array([[True]]))


OPTIONS = SearchOptions(
    batch_size=BATCH,
    step_flop=1e15,
    num_microbatches=(NUM_MICROBATCHES,),
    remats=("none",),
    prices=(0.0,),
    places=True,
)


def compared(cluster):
    """Seconds of a step: ours, of the plan for the slowest on the real hosts, as it promised."""
    costs = Formulas(Blocks(), IntraOptions())
    ours, _ = search(Blocks(), cluster, OPTIONS, costs=costs)
    naive, _ = search(Blocks(), cluster.slowest(), OPTIONS, costs=costs)
    real = on_real_devices(naive, cluster.slowest(), cluster, costs)
    return ours.plan.total_s, real.plan.total_s, naive.plan.total_s


def test_twenty_clusters_have_two_kinds_of_devices_and_two_speeds_of_nics():
    assert len(FILES) == 20
    for path in FILES:
        hosts = [group.host for group in ClusterSpec.from_file(path).groups]
        assert len({host.device.name for host in hosts}) == 2, path
        assert len({host.nics_bytes_per_s for host in hosts}) == 2, path


@pytest.fixture(scope="module", params=few_or_all(4, 20))
def seconds(request):
    files = FILES[:: len(FILES) // request.param]
    return {path.stem: compared(ClusterSpec.from_file(path)) for path in files}


def test_never_worse_than_treating_all_devices_as_the_slowest(seconds):
    for name, (ours, real, promised) in seconds.items():
        assert ours <= real * (1 + 1e-9), name
        assert ours <= promised * (1 + 1e-9), name


def test_three_of_four_are_ten_percent_better(seconds):
    gains = {name: 1 - ours / real for name, (ours, real, _) in seconds.items()}
    assert sum(gain >= 0.1 for gain in gains.values()) >= 0.75 * len(gains), gains


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("num_stages", [None, 2])
def test_either_direction_is_enumerated(num_stages, inner):
    turned = feasible = 0
    for seed in range(24):
        problem = random_problem(seed, mixed=True, max_layers=4, inner=inner)
        ahead, back = (brute_force(p, num_stages)[0] for p in (problem, mirrored(problem)))
        found = build_either_way(problem, np.inf, num_stages=num_stages)
        if found is None:
            assert min(ahead, back) == np.inf
            continue
        feasible, turned = feasible + 1, turned + (back < ahead)
        assert found.total_s == pytest.approx(min(ahead, back), rel=1e-5)
        assert found.bound_s <= min(ahead, back) * (1 + 1e-9)
        for stage in found.stages:
            kind = problem.costs.submeshes[stage.submesh]
            # In the other direction other places of a kind are inside hosts.
            like = [m for m in problem.costs.submeshes if m.host_kinds == kind.host_kinds]
            starts = {p for m in like if m.shape == kind.shape for p in m.starts or ()}
            assert stage.first_device in starts
        assert build_either_way(problem, min(ahead, back) * 0.99, num_stages=num_stages) is None
    assert feasible > 8
    assert turned > 1


@pytest.mark.parametrize("name", ["v100-small-p4d", "a100-h100-2", "h100-p4d-one"])
def test_toy_steps_on_filed_clusters_are_enumerated(name):
    groups = ClusterSpec.from_file(FILES[0].with_name(f"{name}.toml")).groups
    # One host of each kind.
    cluster = ClusterSpec(name=name, groups=tuple(replace(g, count=1) for g in groups))
    source = Blocks(classes=(0, 1, 1, 3))
    options = replace(OPTIONS, use_all_devices=True, num_microbatches=(4,))
    found, _ = search(source, cluster, options, costs=Formulas(source, IntraOptions()))
    best = min(brute_force(p)[0] for p in (found.problem, mirrored(found.problem)))
    assert found.plan.total_s == pytest.approx(best, rel=1e-5)


def test_on_equal_hosts_there_is_one_direction():
    for seed in range(10):
        problem = random_problem(seed)
        try:
            best = build_stages(problem)
        except InfeasibleError:
            continue
        assert build_either_way(problem, np.inf) == best


def test_the_order_of_hosts_in_the_file_does_not_matter():
    plans = []
    for text in ("1x p3.16xlarge + 1x p4d.24xlarge", "1x p4d.24xlarge + 1x p3.16xlarge"):
        cluster = ClusterSpec.virtual(text)
        costs = Formulas(Blocks(), IntraOptions())
        options = replace(OPTIONS, num_stages=2, use_all_devices=True)
        found, _ = search(Blocks(), cluster, options, costs=costs)
        hosts = [found.kinds[s.submesh].host.name for s in found.plan.stages]
        # Each stage lies where its kind of host is.
        places = [s.first_device // 8 for s in found.plan.stages]
        assert hosts == [cluster.host_at(place).name for place in places]
        plans.append((found.plan.total_s, hosts, places))
    (first_s, hosts, ahead), (second_s, same_hosts, back) = plans
    assert first_s == second_s
    assert hosts == same_hosts
    assert ahead == back[::-1]


def test_stages_of_one_host_follow_each_other_in_any_order_of_sizes():
    _, submeshes = submeshes_of(
        ClusterSpec.virtual("1x p3.8xlarge + 1x p4d.24xlarge"), every=False, memory_bytes=None
    )
    starts = {(str(m), m.is_inner): m.starts for m in submeshes}
    assert starts["(1,2) on p3.8xlarge", False] == (0,)
    assert starts["(1,2) on p3.8xlarge", True] == (1, 2)
    assert starts["(1,4) on p3.8xlarge", False] == (0,)
    assert ("(1,4) on p3.8xlarge", True) not in starts
    assert starts["(1,4) on p4d.24xlarge", False] == (4,)
    assert starts["(1,4) on p4d.24xlarge", True] == (5, 6, 7, 8)


def test_transfers_inside_hosts_are_told_from_those_between_them():
    """Whichever way the pipeline runs, the boundary of the two hosts goes over their NICs."""
    for text in ("1x p3.16xlarge + 1x p4d.24xlarge", "2x p4d.24xlarge"):
        cluster = ClusterSpec.virtual(text)
        costs = Formulas(Blocks(), IntraOptions())
        options = replace(OPTIONS, num_stages=4, use_all_devices=True)
        found, _ = search(Blocks(), cluster, options, costs=costs)
        stages, transfers = found.plan.stages, found.problem.transfer_s
        size = [found.kinds[s.submesh].num_devices for s in stages]
        seconds = 0.0
        for k in range(3):
            hosts = {s.first_device // 8 for s in stages[k : k + 2]}
            left, right = (found.kinds[s.submesh] for s in stages[k : k + 2])
            rate, latency_s = bytes_per_s(left, right, is_inner=len(hosts) == 1)
            crossing = Blocks().crossing_bytes(0) / NUM_MICROBATCHES
            seconds += 2 * (crossing / rate + latency_s)
        assert transfers is not None
        assert sum(size) == cluster.num_devices
        assert found.plan.time.transfer_s == pytest.approx(seconds)


@pytest.mark.slow
def test_the_simulator_finds_what_is_predicted_where_links_are_slow():
    """Boundaries lie where they seem to lie beside idle devices; two that share a NIC wait."""
    layers, options = layers_and_options(16)
    costs = VariantCosts(layers, options.intra)
    for name in ("v100-small-p4d", "v100-p4d-4", "h100-ethernet-a100"):
        cluster = ClusterSpec.from_file(FILES[0].with_name(f"{name}.toml"))
        found, _ = search(layers, cluster, options, costs=costs)
        plan, _ = finished(
            layers, cluster, found, costs, batch_size=BATCH, step_flop=options.step_flop
        )
        assert plan.step_time_s == pytest.approx(plan.formula_s, rel=0.05), name


@pytest.mark.parametrize("wish", [None, False, True])
def test_devices_may_stay_idle_where_hosts_differ(wish):
    cluster = ClusterSpec.virtual("1x p3.16xlarge + 4x dgx-h100")
    costs = Formulas(Blocks(), IntraOptions())
    options = replace(OPTIONS, use_all_devices=wish)
    found, _ = search(Blocks(), cluster, options, costs=costs)
    used = sum(found.kinds[s.submesh].num_devices for s in found.plan.stages)
    assert (used == 40) == (wish is True)
