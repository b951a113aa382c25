"""Tables of `meshwise train`: how the state lies, and what the plan promises for a step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
from rich.table import Table

from meshwise.jax_compat.arrays import HOST_MEMORY
from meshwise.jax_compat.jaxprs import PyTree
from meshwise.plan.counts.collectives import collective_sums
from meshwise.plan.plan import Plan
from meshwise.plan.text.columns import dims_text, with_place
from meshwise.plan.text.explain import mesh_text
from meshwise.plan.text.optimum import optimum_text
from meshwise.train.step import TrainState
from meshwise.units import bytes_text, counted, flop_text, range_text, seconds_text

# The number of a layer in a name, as in "params/block_3/up".
_NUMBER = re.compile(r"(?<=[_/])\d+(?=/)")


def layout_table(state: PyTree, plan: Plan) -> Table:
    """Return how the state lies on the devices; equal layers share a row.

    Args:
        state: A `TrainState`, whose parameters and optimizer state are told apart; or any other.
        plan: Whose stages hold it.
    """
    params, opt_state = state, None
    columns = ["array", "shape", "count", "layout"]
    if isinstance(state, TrainState):
        params, opt_state = state.params, state.opt_state
        columns = ["parameter", "shape", "count", "layout", "moments"]
    moments: dict[str, list[str]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(opt_state):
        # Optax keeps a tree like that of the parameters below each moment.
        for depth in range(len(path)):
            moments.setdefault(_name(path[depth:]), []).append(_layout(leaf))
    rows: dict[tuple[str, ...], list[str]] = {}
    has_stages = len(plan.stages) > 1
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = _name(path)
        kept = (", ".join(dict.fromkeys(moments.get(name, []))),) if opt_state is not None else ()
        where = (_holders(leaf, plan),) if has_stages else ()
        shape = "x".join(map(str, leaf.shape)) or "scalar"
        row = (_NUMBER.sub("*", name), shape, *where, _layout(leaf), *kept)
        rows.setdefault(row, []).append(name)
    mesh = _mesh(jax.tree.leaves(params)[0])
    told = "P(-, x): dim 0 is whole, dim 1 is split over axis x"
    if has_stages:
        mesh = _stages_title(plan)
        told += "; stages: over the stages that hold it"
        columns.insert(2, "stage" if _is_one_to_one(plan) else "mesh")
    table = Table(title=f"state on {mesh} ({told})", title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    count = columns.index("count")
    for (pattern, *cells), names in sorted(rows.items(), key=lambda row: row[0][0]):
        row = [pattern if len(names) > 1 else names[0], *cells]
        table.add_row(*row[:count], str(len(names)), *row[count:])
    return table


def plan_table(plan: Plan, plan_s: float, limit: int | None = None) -> Table:
    """Return what the plan promises for a step; `meshwise train --dump-plan` shows all of it.

    Args:
        plan: The plan, of one mesh.
        plan_s: Seconds in which it was found.
        limit: Bytes that a device may hold, as it was asked for; None: what it has.
    """
    table = Table(title=f"plan, found in {plan_s:.1f} s", title_justify="left", show_header=False)
    replicated = plan.replicated
    table.add_row("method", plan.method)
    table.add_row("search", optimum_text(plan))
    table.add_row("mesh", mesh_text(plan.mesh))
    table.add_row("micro-batches", str(plan.num_microbatches))
    table.add_row("predicted time", seconds_text(plan.step_time_s))
    most = bytes_text(plan.mesh.device.memory_bytes if limit is None else limit)
    table.add_row("predicted memory", f"{bytes_text(plan.peak_bytes)} of {most} a device")
    table.add_row("dense work", f"{flop_text(plan.device_flop)} a device")
    table.add_row(
        "replicated",
        f"{replicated.flop_share:.2%} of FLOP, {replicated.bytes_share:.2%} of bytes",
    )
    for (_, kind, axes, _), (count, num_bytes, _) in sorted(
        collective_sums(plan.collectives, [plan.mesh]).items()
    ):
        what = f"{kind} over {' '.join(axes)}"
        table.add_row(what, f"{counted(count, 'time')}, {bytes_text(num_bytes)} in all")
    return table


def pipeline_table(plan: Plan, plan_s: float) -> Table:
    """Return what the plan of a pipeline promises for a step, stage by stage."""
    title = (
        f"plan, found in {plan_s:.1f} s: {counted(len(plan.stages), 'stage')}, "
        f"{counted(plan.num_microbatches, 'micro-batch')}, schedule {plan.schedule_choice}; "
        f"predicted {seconds_text(plan.step_time_s)} a step, bubble {plan.bubble_share:.1%}"
    )
    table = Table(title=title, title_justify="left")
    for name in ("stage", "layers", "devices", "mesh", "remat"):
        table.add_column(name)
    for name in ("forward", "backward", "once", "memory"):
        table.add_column(name, justify="right")
    for number, stage in enumerate(plan.stages):
        table.add_row(
            str(number),
            range_text(stage.first_layer, stage.last_layer),
            range_text(stage.first_device, stage.first_device + stage.num_devices - 1),
            "x".join(map(str, stage.mesh.sizes)),
            stage.remat,
            *map(seconds_text, (stage.forward_s, stage.backward_s, stage.once_s)),
            bytes_text(stage.peak_bytes),
        )
    return table


def _is_one_to_one(plan: Plan) -> bool:
    """Return whether each stage has a mesh of its own."""
    return plan.num_meshes == len(plan.stages)


def _stages_title(plan: Plan) -> str:
    """Return how many stages there are, and which of them share a mesh."""
    text = counted(len(plan.stages), "stage")
    if _is_one_to_one(plan):
        return text
    stages: dict[int, list[int]] = {}
    for stage, mesh in enumerate(plan.mesh_of_stage):
        stages.setdefault(mesh, []).append(stage)
    shared = "; ".join(f"mesh {m}: stages {_numbers(found)}" for m, found in stages.items())
    return f"{text}, {shared}"


def _holders(leaf: jax.Array, plan: Plan) -> str:
    """Return the numbers of the meshes that hold an array: of their stages, if these are one each.

    Devices of a plan are numbered as JAX lists them.
    """
    numbers = {device: number for number, device in enumerate(jax.devices())}
    mine = {numbers[device] for device in leaf.sharding.device_set}
    found = {
        mesh
        for mesh, stage in zip(plan.mesh_of_stage, plan.stages, strict=True)
        if not mine.isdisjoint(range(stage.first_device, stage.first_device + stage.num_devices))
    }
    return _numbers(sorted(found))


def _numbers(numbers: Sequence[int]) -> str:
    """Return numbers in their order, a run of more than two as `0-3`."""
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 2 and last - first == len(numbers) - 1:
        return f"{first}-{last}"
    return ", ".join(map(str, numbers))


def _name(path: tuple[object, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _mesh(leaf: jax.Array) -> str:
    if not isinstance(leaf.sharding, jax.sharding.NamedSharding):
        return "one device"
    return "mesh " + ", ".join(f"{n}={s}" for n, s in leaf.sharding.mesh.shape.items())


def _layout(leaf: jax.Array) -> str:
    """Return how an array lies, as plans write it: `P(-, (x, y))`."""
    entries: tuple[Any, ...] = ()
    if isinstance(leaf.sharding, jax.sharding.NamedSharding):
        entries = tuple(leaf.sharding.spec)
    entries += (None,) * (leaf.ndim - len(entries))
    dims = [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in entries]
    return with_place(dims_text(dims), in_host=leaf.sharding.memory_kind == HOST_MEMORY)
