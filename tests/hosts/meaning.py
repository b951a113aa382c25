"""One process of a job that runs pipelines over processes, and compares them with one device.

Its arguments are cases, as `small:3`, `any:17` or `folded:2`: those of `doubles.pipeline_cases`.
As `rows:3` each process gets the rows of the batch that its devices take, and no others; as
`parts:3` an equal part of the rows, for `mw.host_batch`.  Before a case may stand the transport, as
in `device_put:small:3`.  Cases take the strategies of transfers in turn, and small chunks.
"""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from doubles.layered_steps import SIGNATURE, host
from doubles.pipeline_cases import (
    MODELS,
    SMALL_MODELS,
    PipelineCase,
    folded_case,
    pipeline_case,
    small_case,
)
from doubles.stage_choices import choices_of
from hosts.joined import join
from meshwise.hosts.data.host_batch import host_batch
from meshwise.planner.pipeline import layers_of
from meshwise.resharding.cross_mesh.sending import Sending
from meshwise.resharding.cross_mesh.strategies import STRATEGIES
from meshwise.runtime.host_rows import HostRows
from meshwise.runtime.job.job import Job, TransportName, current_job
from meshwise.runtime.pipeline.build import StageChoice
from meshwise.runtime.pipeline.executable import homes_of
from meshwise.runtime.pipeline.interpreter import Pipeline
from meshwise.runtime.pipeline.make_pipeline import make_pipeline
from meshwise.runtime.pipeline.stacked_ends import StackedEnds
from meshwise.runtime.placement import placed
from meshwise.runtime.scalars import EveryProcess
from meshwise.trace.layers.layering import Layering
from meshwise.trace.layers.stacks.unstack import Unstacked
from oracle.one_device import run_traced, traced
from oracle.problem import quick_jit
from oracle.tolerances import FP16_LOSS, X64

_CASES = {
    "small": small_case,
    "any": pipeline_case,
    "folded": folded_case,
    "rows": small_case,
    "parts": small_case,
}
STEPS = 2


def on_one_device(case: PipelineCase) -> tuple[Any, Any, list[list[Any]]]:
    """A step, its arguments, and the flat results of some steps on one device."""
    step, args = {**MODELS, **SMALL_MODELS}[case.model]()
    state, batch = args
    count = case.schedule.num_microbatches if case.model == "wide-resnet" else 1
    found: list[list[Any]] = []
    for _ in range(STEPS):
        if count > 1:
            local = traced(step, state, batch, b=count, num_devices=1, statistics="local")
            out = run_traced(local, state, batch)
        else:
            out = quick_jit(step)(state, batch)
        found.append([host(leaf) for leaf in jax.tree.leaves(out)])
        state = out[0]
    return step, args, found


def needed_rows(pipeline: Pipeline, ends: Unstacked, leaves: list[Any]) -> list[Any]:
    """The leaves, those of the batch with the rows that devices of this process take."""
    found = list(leaves)
    for position, dim in ends.original.batch_dims.items():
        (number,) = ends.arguments[position].places
        rows = rows_by_brute_force(pipeline, number, dim)
        spans = pipeline.rows_here(number, dim)
        assert rows == [n for start, stop in spans for n in range(start, stop)]
        whole = np.asarray(leaves[position])
        pieces = [(a, whole[(slice(None),) * dim + (slice(a, b),)].copy()) for a, b in spans]
        dtype = ends.original.in_avals[position].dtype
        found[position] = HostRows(whole.shape, dtype, dim=dim, pieces=pieces)
    return found


def rows_by_brute_force(pipeline: Pipeline, number: int, dim: int) -> list[int]:
    """The rows of an argument that any device of this process has when a step begins."""
    found: set[int] = set()
    for mesh, program in enumerate(pipeline.program.meshes):
        for load in program.loads:
            if load.number != number or load.kind == "index":
                continue
            spec = pipeline.specs.meshes[mesh][load.buffer]
            rows = pipeline.layers.split.in_avals[number].shape[dim]
            first = load.microbatch * (rows // pipeline.schedule.num_microbatches)
            for device, index in spec.sharding.devices_indices_map(spec.shape).items():
                if device.process_index == jax.process_index():
                    within = range(spec.shape[dim])[index[dim]]
                    found |= {max(first, 0) + n for n in within}
    return sorted(found)


def own_parts(ends: Unstacked, leaves: list[Any]) -> list[Any]:
    """The leaves, those of the batch made of an equal part of the rows in each process."""
    found, process, count = list(leaves), jax.process_index(), jax.process_count()
    for position, dim in ends.original.batch_dims.items():
        whole = np.asarray(leaves[position])
        part = whole.shape[dim] // count
        rows = (slice(None),) * dim + (slice(process * part, (process + 1) * part),)
        found[position] = host_batch(whole[rows], batch_dims=dim)
    return found


def over_processes(
    case: PipelineCase, step: Any, args: Any, job: Job, kind: str, sending: Sending
) -> list[list[Any]]:
    """The same by a pipeline over the processes of the job."""
    statistics = "local" if case.model == "wide-resnet" else "exact"
    layers, _ = layers_of(step, args, {}, SIGNATURE, case.num_layers, statistics=statistics)
    pipeline = make_pipeline(layers, _choices(layers, case, job), case.schedule, job, sending)
    assert layers.ends is not None
    ends = StackedEnds(layers.ends, homes_of(pipeline), pipeline.copier)
    every_process = EveryProcess()
    state, batch = args
    tree = jax.tree.structure(jax.eval_shape(step, state, batch))
    found: list[list[Any]] = []
    for number in range(STEPS):
        if number and kind not in ("rows", "parts"):
            batch = on_first_process(batch)
        leaves = jax.tree.leaves((state, batch))
        if kind == "rows":
            leaves = needed_rows(pipeline, layers.ends, leaves)
        elif kind == "parts":
            leaves = own_parts(layers.ends, leaves)
        flat, _ = ends.arguments(leaves)
        made = ends.results(pipeline.run(flat, label=f"step {number}"))
        made = every_process.readable(made, pipeline.copier)
        found.append(made)
        jax.block_until_ready(made)
        shown = [[(s.index, host(s.data)) for s in x.addressable_shards] for x in made]
        found[-1] = list(zip(made, shown, strict=True))
        state = jax.tree.unflatten(tree, made)[0]
    return found


def on_first_process(batch: Any) -> Any:
    """Return a batch of which only process 0 has something."""
    mesh = Mesh([d for d in jax.devices() if not d.process_index], ("devices",))
    leaves, tree = jax.tree.flatten(batch)
    there = NamedSharding(mesh, PartitionSpec())
    return jax.tree.unflatten(tree, placed(leaves, [there] * len(leaves)))


def _choices(layers: Layering, case: PipelineCase, job: Job) -> list[StageChoice]:
    """Return the stages of a case as process 0 plans them."""
    own: list[StageChoice] = []

    def plan() -> str:
        own.extend(choices_of(layers, case))
        told = [replace(choice, devices=tuple(d.id for d in choice.devices)) for choice in own]
        return base64.b64encode(pickle.dumps(told)).decode()

    told = pickle.loads(base64.b64decode(job.from_first("the stages", plan)))
    devices = {device.id: device for device in jax.devices()}
    return [replace(c, devices=tuple(devices[n] for n in c.devices)) for c in told]


def check(case: PipelineCase, job: Job, kind: str, sending: Sending) -> None:
    """Compare every shard of this process with one device, and replicas with other processes."""
    with jax.enable_x64(case.model != "fp16"):
        step, args, expected = on_one_device(case)
        found = over_processes(case, step, args, job, kind, sending)
        for mine, theirs in zip(found, expected, strict=True):
            _check_replicas(mine, job)
            for n, ((array, shards), want) in enumerate(zip(mine, theirs, strict=True)):
                assert array.ndim or shards, f"scalar {n} is not readable here"
                for index, data in shards:
                    _check_shard(case, n, len(mine), data, _numbers(want)[index])


def _check_shard(case: PipelineCase, n: int, count: int, data: Any, want: Any) -> None:
    data = _numbers(data)
    assert (data.dtype, data.shape) == (want.dtype, want.shape)
    if not np.issubdtype(data.dtype, np.floating):
        np.testing.assert_array_equal(data, want)
    elif case.model == "fp16":
        # The last three results are the loss, whether gradients were finite, and the scale.
        if n == count - 3:
            np.testing.assert_allclose(data, want, rtol=FP16_LOSS)
    else:
        share = max(X64, 2 * float(np.finfo(data.dtype).eps))
        atol = share * max(1.0, float(np.max(np.abs(want), initial=0.0)))
        np.testing.assert_allclose(data, want, rtol=0, atol=atol)


def _check_replicas(results: Sequence[Any], job: Job) -> None:
    """The same part of an array is the same bits in every process."""
    mine = {
        f"{n} {index}": hashlib.sha256(_numbers(data).tobytes()).hexdigest()
        for n, (_, shards) in enumerate(results)
        for index, data in shards
    }
    for other in map(json.loads, job.exchange("replicas", json.dumps(mine))):
        for part in mine.keys() & other.keys():
            assert mine[part] == other[part], f"replicas of {part} differ"


def _numbers(value: Any) -> np.ndarray[Any, Any]:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)


if __name__ == "__main__":
    for name in join():
        *transport, kind, number = name.split(":")
        found = current_job()
        assert found is not None
        if transport:
            found = replace(found, transport=cast(TransportName, transport[0]))
        chosen = _CASES[kind](int(number))
        strategies = tuple(STRATEGIES)
        # At this rate chunks are small.
        sending = Sending(strategy=strategies[int(number) % len(strategies)], bytes_per_s=1e5)
        check(chosen, found, kind, sending)
        print("passed", name, chosen, sending, flush=True)  # noqa: T201 (for the test that reads it)
    jax.distributed.shutdown()
