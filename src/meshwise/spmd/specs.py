"""The layouts of a plan as `PartitionSpec`s, for users who take nothing but the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from meshwise.errors import PlanError
from meshwise.plan.counts.contents import Argument
from meshwise.plan.plan import Plan
from meshwise.plan.record import ONE_PROGRAM
from meshwise.plan.stage import Stage
from meshwise.spmd.program import concrete_mesh, partition_spec, placed_sharding
from meshwise.units import counted


def partition_specs(plan: Plan, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Return the arguments of a step with a `PartitionSpec` in place of each leaf.

    The axes are those of the mesh of the stage on which an argument lives (`stage.mesh` of the
    first stage of `plan.stages` that lists it); the JAX mesh must have the same sizes and names,
    and Auto axes (`jax.make_mesh` makes Explicit ones, which refuse a contraction over a split dim,
    unless told `axis_types=(jax.sharding.AxisType.Auto,) * len(names)`).

    Of a pipeline, arguments that no stage keeps (batch data, which is cut into micro-batches) are
    whole, and a stack of layers is split as each of its layers is.

    Args:
        plan: The plan, also one read from JSON.
        *args: The positional arguments that the plan was made for, arrays or
            `ShapeDtypeStruct`s, without static arguments.
        **kwargs: The keyword arguments; one that has a position in the step counts as positional,
            as it does for `parallelize`.

    Returns:
        One tree for each positional argument, as `in_shardings` of `jax.jit` takes them; if
        there are arguments without a position, last the dict of their trees.

    Raises:
        PlanError: the arguments are not those of the plan, or the layers of a stack lie in
            different ways.
    """
    if not isinstance(plan, Plan):
        raise PlanError(
            f"partition_specs takes a Plan first, got {plan!r:.60} ({type(plan).__name__}); call "
            "it as mw.partition_specs(step.plan(state, batch), state, batch)"
        )
    rest = dict(kwargs)
    positional = (*args, *(rest.pop(n) for _, n in plan.parameters[len(args) :] if n in rest))
    numbers = [number for number, _ in plan.parameters] or list(range(len(positional)))
    found, tree = jax.tree_util.tree_flatten_with_path((positional, rest))
    names = [_name(path, numbers) for path, _ in found]
    shapes = [_shape(leaf) for _, leaf in found]
    if plan.schedule == ONE_PROGRAM:
        (stage,) = plan.stages
        _check_fit(names, shapes, stage.arguments)
        specs = [partition_spec(x.layout, stage.mesh.names) for x in stage.arguments]
    else:
        specs = _specs_of_stages(plan, names, shapes)
    trees, keywords = jax.tree.unflatten(tree, specs)
    return (*trees, keywords) if keywords else tuple(trees)


def jax_mesh(plan: Plan, devices: Sequence[Any] | None = None) -> Mesh:
    """Return the JAX mesh of a plan of one mesh, with Auto axes.

    Args:
        plan: The plan, also one read from JSON.
        devices: The devices, row-major; the first ones of `jax.devices()` by default.

    Raises:
        PlanError: the plan has several stages, each with its own mesh, or there are too few
            devices.
    """
    logical = plan.mesh
    there = jax.devices() if devices is None else list(devices)
    if len(there) < logical.num_devices:
        raise PlanError(
            f"the plan is for {counted(logical.num_devices, 'device')}, and there are {len(there)} "
            f"({', '.join(map(str, there[:3]))}{', ...' if len(there) > 3 else ''}); pass "
            "devices=, or plan for those that are here"
        )
    return concrete_mesh(logical, there[: logical.num_devices])


def shardings(
    plan: Plan, *args: Any, devices: Sequence[Any] | None = None, **kwargs: Any
) -> tuple[Any, ...]:
    """Return the arguments of a step with a `NamedSharding` in place of each leaf.

    Args:
        plan: A plan of one mesh.
        *args: As for `partition_specs`.
        devices: As for `jax_mesh`.
        **kwargs: As for `partition_specs`.

    Returns:
        As `partition_specs`: trees for `jax.device_put`, or for `in_shardings` of `jax.jit`.

    Raises:
        PlanError: the arguments are not those of the plan, or it is as `jax_mesh` refuses.
    """
    specs = partition_specs(plan, *args, **kwargs)
    mesh = jax_mesh(plan, devices)
    leaves, tree = jax.tree.flatten(specs, is_leaf=lambda x: isinstance(x, PartitionSpec))
    found = [
        placed_sharding(mesh, spec, in_host=argument.in_host)
        for spec, argument in zip(leaves, plan.stages[0].arguments, strict=True)
    ]
    return jax.tree.unflatten(tree, found)


def _specs_of_stages(
    plan: Plan, names: Sequence[str], shapes: Sequence[tuple[int, ...]]
) -> list[PartitionSpec]:
    """Return the spec of each leaf on the mesh of the stage on which it lives."""
    there: dict[str, tuple[Stage, Argument]] = {}
    for stage in plan.stages:
        for argument in stage.arguments:
            there.setdefault(argument.name, (stage, argument))
    known = [name for name in names if name in there or f"{name}[0]" in there]
    if not known:
        raise PlanError(
            f"none of the arguments ({', '.join(names[:3])}) is kept by a stage of the plan, which "
            f"has {', '.join(list(there)[:3])}; pass what the plan was made for"
        )
    found: list[PartitionSpec] = []
    for name, shape in zip(names, shapes, strict=True):
        if name in there:
            stage, argument = there[name]
            if argument.shape != shape:
                raise PlanError(
                    f"{name} has shape {list(shape)}, the plan is for {list(argument.shape)}; pass "
                    "what the plan was made for, or plan again"
                )
            found.append(partition_spec(argument.layout, stage.mesh.names))
        elif f"{name}[0]" in there:
            found.append(_spec_of_stack(name, shape, there))
        else:
            found.append(PartitionSpec())
    return found


def _spec_of_stack(
    name: str, shape: tuple[int, ...], there: Mapping[str, tuple[Stage, Argument]]
) -> PartitionSpec:
    """Return the spec of a stack of layers, whose members are `name[0]`, `name[1]`, ..."""
    members = [there[f"{name}[{n}]"] for n in range(max(shape)) if f"{name}[{n}]" in there]
    specs = {partition_spec(x.layout, stage.mesh.names) for stage, x in members}
    if len(specs) > 1:
        raise PlanError(
            f"the layers of {name} lie in different ways ({', '.join(map(str, specs))}), so that "
            "the stack has no one PartitionSpec; take those of plan.stages"
        )
    alone = members[0][1].shape
    dims = [
        d
        for d in range(len(shape))
        if shape[d] == len(members) and (*shape[:d], *shape[d + 1 :]) == alone
    ]
    if not dims:
        raise PlanError(
            f"{name} has shape {list(shape)}, the plan is for {counted(len(members), 'layer')} of "
            f"{list(alone)}; pass what the plan was made for, or plan again"
        )
    entries = [*specs.pop(), *[None] * len(shape)][: len(alone)]
    entries.insert(dims[0], None)
    return PartitionSpec(*entries)


def _name(path: Any, numbers: Sequence[int]) -> str:
    part, argument, *rest = path
    if part.idx == 0:
        first = str(numbers[argument.idx] if argument.idx < len(numbers) else argument.idx)
    else:
        first = str(argument.key)
    return "/".join((first, *(jax.tree_util.keystr((key,), simple=True) for key in rest)))


def _shape(leaf: Any) -> tuple[int, ...]:
    return tuple(leaf.shape if isinstance(leaf, jax.ShapeDtypeStruct) else np.shape(leaf))


def _check_fit(
    names: Sequence[str], shapes: Sequence[tuple[int, ...]], wanted: Sequence[Argument]
) -> None:
    """Check the leaves against the arguments of the plan; the first that differs is named.

    Raises:
        PlanError: number or shapes differ.
    """
    what_to_do = "pass what the plan was made for, static arguments left out, or plan again"
    for position, (name, shape, argument) in enumerate(zip(names, shapes, wanted, strict=False)):
        if shape != argument.shape or name != argument.name:
            raise PlanError(
                f"leaf {position} ({name}) has shape {list(shape)}, the plan is for "
                f"{argument.name} of shape {list(argument.shape)}; {what_to_do}"
            )
    if len(names) != len(wanted):
        common = min(len(names), len(wanted))
        if len(names) > common:
            first = f"{names[common]} is too much"
        else:
            first = f"{wanted[common].name} is missing"
        raise PlanError(
            f"the arguments have {len(names)} leaves, the plan is for {len(wanted)}: {first}; "
            f"{what_to_do}"
        )
