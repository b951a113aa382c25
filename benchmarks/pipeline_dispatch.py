"""Dispatch of a pipelined step against a flat loop over the same executables; memory over steps."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

import meshwise as mw
from benchmarks.pairs import run_pairs
from benchmarks.small_pipeline import small_pipeline
from meshwise.cluster.cpu import cpu_cluster
from meshwise.graph.layout import Layout
from meshwise.program.instructions import Free, Instruction, Load, Receive, Run, Send
from meshwise.runtime.pipeline.interpreter import Pipeline
from meshwise.runtime.transports.copies import Rows
from meshwise.spmd.part import border_spec

NUM_LAYERS = 4
ROWS = 8
NUM_MICROBATCHES = 4


def pipeline_dispatch(quick: bool) -> dict[str, Any]:
    """Goals: at most 1.5 times a flat loop; no more memory after 2,000 steps."""
    step, state, batch = small_pipeline(
        num_layers=NUM_LAYERS,
        rows=ROWS,
        num_microbatches=NUM_MICROBATCHES,
        cluster=cpu_cluster(2),
    )
    batch = jax.tree.map(jnp.asarray, batch)
    state, _ = step(state, batch)
    num_steps = 50 if quick else 2000
    warm_bytes = 0
    for n in range(num_steps):
        state, loss = step(state, batch)
        if n % 10 == 9:
            loss.block_until_ready()
        if n == num_steps // 10:
            warm_bytes = resident_bytes()
    jax.block_until_ready(state)
    end_bytes = resident_bytes()
    pipeline: Pipeline = step._last.pipeline  # type: ignore[union-attr]
    by_hand = flat_loop(step, pipeline)
    copied = jax.tree.map(jnp.copy, state)
    np.testing.assert_array_equal(
        step(jax.tree.map(jnp.copy, state), batch)[1], by_hand(copied, batch)[1]
    )
    pairs = run_pairs(
        runner(step, jax.tree.map(jnp.copy, state), batch),
        runner(by_hand, state, batch),
        num_pairs=20 if quick else 300,
    )
    return {
        "num_instructions": len(pipeline.program.order),
        "num_steps": num_steps,
        "resident_bytes_after_warm_up": warm_bytes,
        "resident_bytes_at_end": end_bytes,
        "step": pairs.to_json(),
    }


def runner(step: Callable[..., Any], state: Any, batch: Any) -> Callable[[], None]:
    """Runs one step on a state of its own and waits for it."""
    box = [state]

    def run() -> None:
        box[0], loss = step(box[0], batch)
        jax.block_until_ready((box[0], loss))

    return run


def flat_loop(step: mw.ParallelStep, pipeline: Pipeline) -> Callable[..., Any]:
    """The step as someone would write it down by hand: one statement for each instruction.

    Arguments lie where the step left them; executables, slices and copies are those of the step.
    """
    source = _Source(pipeline)
    body, tree = source.compiled(), step._last.out_tree  # type: ignore[union-attr]

    def run(state: Any, batch: Any) -> Any:
        return jax.tree.unflatten(tree, body(jax.tree.leaves((state, batch))))

    return run


class _Source:
    """Python source of a step, and what its names stand for."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.names: dict[str, Any] = {"put": pipeline.copier.put}
        self.shardings: dict[NamedSharding, str] = {}

    def compiled(self) -> Callable[[list[Any]], list[Any]]:
        program = self.pipeline.program
        lines: list[str] = []
        for mesh, own in enumerate(program.meshes):
            lines += [f"b{mesh}_{load.buffer} = {self.loaded(mesh, load)}" for load in own.loads]
        lists = [iter(mesh.instructions) for mesh in program.meshes]
        lines += [self.statement(mesh, next(lists[mesh])) for mesh in program.order]
        results = {j: f"flat[{i}]" for j, i in program.passed}
        for mesh, own in enumerate(program.meshes):
            results.update((j, f"b{mesh}_{b}") for j, b in own.results)
        lines.append("return [" + ", ".join(results[j] for j in range(len(results))) + "]")
        exec("def body(flat):\n" + "".join(f"    {line}\n" for line in lines), self.names)
        return self.names["body"]

    def loaded(self, mesh: int, load: Load) -> str:
        if load.kind == "index":
            name = f"index{mesh}_{load.microbatch}"
            self.names[name] = self.pipeline.indices[mesh][load.microbatch]
            return name
        if load.kind == "argument":
            return f"flat[{load.number}]"
        size = ROWS // NUM_MICROBATCHES
        name = f"rows{load.microbatch}"
        self.names[name] = Rows(0, load.microbatch * size, (load.microbatch + 1) * size)
        return f"put(flat[{load.number}], {self.sharding(mesh, load.layout)}, rows={name})"

    def statement(self, mesh: int, instruction: Instruction) -> str:
        match instruction:
            case Run():
                run = f"run{instruction.program}"
                self.names[run] = self.pipeline.executables[instruction.program].run
                made = "".join(f"b{mesh}_{b}, " for b in instruction.outputs)
                return f"{made}= {run}({', '.join(f'b{mesh}_{b}' for b in instruction.inputs)})"
            case Send():
                target = self.sharding(instruction.mesh, instruction.layout)
                return f"t{instruction.transfer} = put(b{mesh}_{instruction.buffer}, {target})"
            case Receive():
                return f"b{mesh}_{instruction.buffer} = t{instruction.transfer}"
            case Free():
                return "del " + ", ".join(f"b{mesh}_{b}" for b in instruction.buffers)

    def sharding(self, mesh: int, layout: Layout) -> str:
        target = self.pipeline.meshes[mesh]
        sharding = NamedSharding(target, border_spec(layout, target.axis_names))
        name = self.shardings.setdefault(sharding, f"sharding{len(self.shardings)}")
        self.names[name] = sharding
        return name


def resident_bytes() -> int:
    """Memory of this process, from Linux."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096
