"""Clusters of two kinds of hosts: the plan found, against that of a planner who sees the slowest.

Three plans of one GPT on each cluster of `examples/clusters`:

- ours: the search on the cluster as it is;
- promised: the search on `cluster.slowest()`, as many hosts, each as slow in everything as the
  slowest; what that planner believes;
- real: the same stages, submeshes, logical meshes and rematerialisation put on the real hosts in
  their order.  Layouts are chosen anew for the real devices, which is kind to that planner.

The criterion is simulated time, ours against real; both are also given by the planner's formula.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from meshwise.cluster.spec import ClusterSpec
from meshwise.cluster.submesh import Submesh as Place
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.search.finishing import NamedLayers, finished
from meshwise.inter.search.search import FoundPipeline, search
from meshwise.inter.search.search_space import SearchOptions
from meshwise.inter.stages.objective import step_time
from meshwise.inter.stages.placement import place_stages
from meshwise.inter.stages.stage_construction import StagePlan
from meshwise.inter.stages.stage_problem import StageCosts, StageProblem
from meshwise.inter.stages.submeshes import StageSubmesh
from meshwise.inter.stages.transfers import transfer_s
from meshwise.models.sizes.gpt_sizes import gpt_config
from meshwise.models.steps import model_step
from meshwise.planner.pipeline import layers_of
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.trace.step import StepSignature

CLUSTERS = Path(__file__).parents[1] / "examples" / "clusters"
QUICK = ("v100-p4d-2", "a100-h100-2")
BATCH, NUM_MICROBATCHES = 256, 32
_MEMORY = ("resident_bytes", "microbatch_bytes", "temporary_bytes")
_COLUMNS = ("microbatch_s", "gather_s", "once_s", *_MEMORY)


def layers_and_options(num_blocks: int) -> tuple[NamedLayers, SearchOptions]:
    """The layers of a GPT of hidden size 4096, and what is searched.

    Args:
        num_blocks: Its blocks.
    """
    config = gpt_config("6.7B", num_layers=num_blocks)
    step, state, batch = model_step(dataclasses.replace(config, dtype="float16"), BATCH).abstract
    signature = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")
    layers, flop = layers_of(step, (state, batch), {}, signature)
    options = SearchOptions(
        batch_size=BATCH,
        step_flop=flop,
        num_microbatches=(NUM_MICROBATCHES,),
        # One schedule on both sides.
        schedules=(ONE_F_ONE_B,),
        remats=("none", "full"),
        prices=(1e-3,),
        # Both planners know which transfers leave a host.
        places=True,
        # One price of memory for all clusters, so that plans of layers are made once.
        guess_s=1.0,
    )
    return layers, options


def mixed_clusters(quick: bool) -> dict[str, Any]:
    """Two kinds of hosts and two speeds of NICs: gain over treating all as the slowest."""
    layers, options = layers_and_options(4 if quick else 16)
    costs = VariantCosts(layers, options.intra)
    result: dict[str, Any] = {}
    for path in sorted(CLUSTERS.glob("*.toml")):
        if not quick or path.stem in QUICK:
            result[path.stem] = _compared(ClusterSpec.from_file(path), layers, costs, options)
    gains = [row["real_simulated_s"] / row["ours_simulated_s"] for row in result.values()]
    result["summary"] = {
        "clusters": len(gains),
        "never_worse": all(g >= 1 for g in gains),
        "at_least_10_percent": sum(g >= 1 / 0.9 for g in gains),
        "least_gain": min(gains),
        "mean_gain": math.prod(gains) ** (1 / len(gains)),
    }
    return result


def _compared(
    cluster: ClusterSpec, layers: NamedLayers, costs: VariantCosts, options: SearchOptions
) -> dict[str, Any]:
    start = time.process_time()
    whole = {"batch_size": options.batch_size, "step_flop": options.step_flop}
    ours, _ = search(layers, cluster, options, costs=costs)
    ours_s = time.process_time() - start
    slowest = cluster.slowest()
    promised, _ = search(layers, slowest, options, costs=costs)
    real = on_real_devices(promised, slowest, cluster, costs)
    plan, _ = finished(layers, cluster, ours, costs, **whole)
    row: dict[str, Any] = {"hosts": " + ".join(f"{g.count}x {g.host.name}" for g in cluster.groups)}
    for name, found, where in (
        ("ours", ours, cluster),
        ("real", real, cluster),
        ("promised", promised, slowest),
    ):
        done, _ = finished(layers, where, found, costs, **whole)
        row[f"{name}_s"] = done.formula_s
        row[f"{name}_simulated_s"] = done.step_time_s
        row[f"{name}_stages"] = len(done.stages)
    row["idle_devices"] = cluster.num_devices - sum(s.mesh.num_devices for s in plan.stages)
    row["planning_cpu_s"] = ours_s
    return row


def on_real_devices(
    naive: FoundPipeline, slowest: ClusterSpec, cluster: ClusterSpec, costs: VariantCosts
) -> FoundPipeline:
    """A plan for equal hosts put on the hosts that are there, in their order.

    Args:
        naive: What was found on the slowest.
        slowest: Where.
        cluster: Where it is put.
        costs: Plans of layers.
    """
    count = naive.problem.num_microbatches
    stages = tuple(
        dataclasses.replace(s, submesh=i, variant=0) for i, s in enumerate(naive.plan.stages)
    )
    places = _places(naive, slowest, cluster)
    first = [cluster.device_numbers(place)[0] for place in places]
    variants = [
        dataclasses.replace(way, mesh=place.kind.mesh(way.mesh.sizes))
        for place, s in zip(places, naive.plan.stages, strict=True)
        for way in (naive.variants[s.submesh][s.variant],)
    ]
    size = len(costs.source.classes)
    columns = {name: np.full((size, size, len(stages), 1), np.inf) for name in _COLUMNS}
    for i, way in enumerate(variants):
        runs = costs.runs(way, count)
        assert runs is not None
        columns["microbatch_s"][:, :, i, 0] = runs.loop_s / count
        for name in _COLUMNS[1:]:
            columns[name][:, :, i, 0] = getattr(runs, name)
    submeshes = tuple(
        StageSubmesh(
            num_hosts=place.kind.num_hosts,
            devices_per_host=place.kind.devices_per_host,
            memory_bytes=place.kind.device.memory_bytes,
            starts=(start,),
        )
        for place, start in zip(places, first, strict=True)
    )
    kinds = tuple(place.kind for place in places)
    same_host = [False, *(a.first_host == b.first_host for a, b in itertools.pairwise(places))]
    problem = StageProblem(
        costs=StageCosts(submeshes=submeshes, **columns),
        num_devices=cluster.num_devices,
        num_microbatches=count,
        schedule=naive.problem.schedule,
        transfer_s=transfer_s(costs.source, kinds, count, same_host, num_hosts=cluster.num_hosts),
    )
    stages = tuple(
        dataclasses.replace(s, first_device=start) for s, start in zip(stages, first, strict=True)
    )
    time_ = step_time(problem, stages)
    plan = StagePlan(
        stages=stages,
        time=time_,
        bound_s=time_.total_s,
        error_s=0.0,
        space="these stages",
    )
    ways = tuple((way,) for way in variants)
    return FoundPipeline(
        plan=plan, problem=problem, kinds=kinds, variants=ways, tried=dict(naive.tried)
    )


def _places(naive: FoundPipeline, slowest: ClusterSpec, cluster: ClusterSpec) -> list[Place]:
    """Where the stages of a plan for equal hosts lie."""
    size = slowest.devices_per_host
    shapes = [naive.kinds[s.submesh].shape for s in naive.plan.stages]
    first = [s.first_device for s in naive.plan.stages]
    if naive.problem.costs.submeshes[0].starts is None:
        first = list(place_stages(shapes, slowest.num_hosts, size))
    return [
        cluster.submesh(start // size, hosts, start % size, devices)
        for start, (hosts, devices) in zip(first, shapes, strict=True)
    ]
