"""The layouts of a plan as `PartitionSpec`s, for users who take nothing but the plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from meshwise.errors import PlanError
from meshwise.plan.contents import Argument
from meshwise.plan.plan import Plan
from meshwise.spmd.program import partition_spec


def partition_specs(plan: Plan, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """The arguments of a step with a `PartitionSpec` in place of each leaf.

    The axes are those of `plan.mesh`; the JAX mesh must have the same sizes and names, and Auto
    axes (`jax.make_mesh` makes Explicit ones, which refuse a contraction over a split dim, unless
    told `axis_types=(jax.sharding.AxisType.Auto,) * len(plan.mesh.names)`).

    Args:
        plan: A plan on one mesh, also one read from JSON.
        *args: The positional arguments that the plan was made for, arrays or
            `ShapeDtypeStruct`s, without static arguments.
        **kwargs: The keyword arguments; one that has a position in the step counts as positional,
            as it does for `parallelize`.

    Returns:
        One tree for each positional argument, as `in_shardings` of `jax.jit` takes them; if
        there are arguments without a position, last the dict of their trees.

    Raises:
        PlanError: the arguments are not those of the plan, or the plan is a pipeline.
    """
    if not isinstance(plan, Plan):
        raise PlanError(
            f"partition_specs takes a Plan first, got {plan!r:.60} ({type(plan).__name__}); call "
            "it as mw.partition_specs(step.plan(state, batch), state, batch)"
        )
    if len(plan.stages) != 1:
        raise PlanError(
            f"partition_specs needs a plan on one mesh, this one has {len(plan.stages)} stages"
        )
    (stage,) = plan.stages
    rest = dict(kwargs)
    positional = (*args, *(rest.pop(n) for _, n in plan.parameters[len(args) :] if n in rest))
    numbers = [number for number, _ in plan.parameters] or list(range(len(positional)))
    found, tree = jax.tree_util.tree_flatten_with_path((positional, rest))
    names = [_name(path, numbers) for path, _ in found]
    _check_fit(names, [_shape(leaf) for _, leaf in found], stage.arguments)
    specs = [partition_spec(layout, plan.mesh.names) for layout in stage.decision.inputs]
    trees, keywords = jax.tree.unflatten(tree, specs)
    return (*trees, keywords) if keywords else tuple(trees)


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
