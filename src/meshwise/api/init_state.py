"""What `step.init` takes: what makes the state, then the other arguments of the step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from meshwise.api.arguments import Binding, step_name
from meshwise.api.same_arguments import check_same_arguments, named_leaves
from meshwise.errors import PlanError, TraceError
from meshwise.jax_compat.jaxprs import PyTree
from meshwise.planner.step import PlannedCall
from meshwise.runtime.devices import array_of, has_devices_here
from meshwise.runtime.job.job import Job
from meshwise.runtime.kept_programs import kept_programs
from meshwise.runtime.scalars import EveryProcess
from meshwise.trace.step import abstract


def init_call(
    fun: Callable[..., PyTree], args: tuple[PyTree, ...], job: Job | None, name: str
) -> tuple[tuple[PyTree, ...], tuple[PyTree, ...], PyTree]:
    """Return the arguments of what makes a state, the step's other ones, and the state's shapes.

    Args:
        fun: Makes the state.
        args: All arguments.
        job: The processes that make it together; None: this one alone.
        name: The name of the step, for messages.

    Raises:
        TraceError: an argument of `fun` is not an array.
        ClusterError: the arguments of `fun` differ between processes.
    """
    if not callable(fun):
        raise TraceError(
            f"init takes the function that makes the state, got {fun!r:.60}; call it as "
            "step.init(create_state, key, batch)"
        )
    fun_args, others = split_init_args(fun, args)
    if job is not None:
        given = named_leaves(f"an argument of {step_name(fun)}", fun_args)
        check_same_arguments(job, f"init of {name}", list(given))
    for position, argument in enumerate(fun_args):
        label = f"argument {position} of {step_name(fun)}"
        jax.tree.map(partial(abstract, where=label), argument)
    return fun_args, others, jax.eval_shape(fun, *fun_args)


def split_init_args(
    fun: Callable[..., PyTree], args: tuple[PyTree, ...]
) -> tuple[tuple[PyTree, ...], tuple[PyTree, ...]]:
    """Return arguments of `fun`, and the rest; one that takes all of them shares the last ones."""
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):
        return args, ()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = sum(p.default is p.empty for p in positional)
    takes_any = any(p.kind == p.VAR_POSITIONAL for p in parameters)
    if not takes_any and len(args) > len(positional):
        return args[: len(positional)], args[len(positional) :]
    if len(args) > required and not takes_any:
        return args[:required], args[required:]
    return args, args[1:]


class StatePlace(NamedTuple):
    """Which argument of a step is its state: its number, and its order among those not static."""

    number: int
    order: int


def state_place(binding: Binding) -> StatePlace:
    """Return the first argument that is neither static nor batch data, or else the first."""
    dynamic = [slot.position for slot in binding.slots if slot.position not in binding.static]
    batch = binding.signature.batch_argnums
    order = next((k for k in range(len(dynamic)) if k not in batch), 0)
    return StatePlace(dynamic[order] if dynamic else 0, order)


def planned_for_state(
    planned: Mapping[Hashable, PlannedCall], state: PyTree
) -> tuple[Hashable, int]:
    """Return the key of a planned step that takes such a state, and its first leaf's position.

    Args:
        planned: Planned calls of the step.
        state: Shapes of the state.

    Raises:
        PlanError: there is none.
    """
    wanted = [(x.shape, x.dtype) for x in jax.tree.leaves(state)]
    for key, call in planned.items():
        user = call.user
        numbered = jax.tree.unflatten(user.in_tree, range(len(user.in_avals)))
        for argument in numbered[0]:
            places = jax.tree.leaves(argument)
            avals = [user.in_avals[i] for i in places]
            if places and [(a.shape, a.dtype) for a in avals] == wanted:
                return key, places[0]
    raise PlanError(
        "init needs to know the other arguments of the step to make a plan; pass their shapes "
        "too: step.init(create_state, key, batch), or call step.plan(state, batch) before"
    )


def zeros_of_spec(leaf: PyTree) -> PyTree:
    """Zeros in place of a shape; arrays stay."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jnp.zeros(leaf.shape, leaf.dtype)
    return leaf


def readable_places(
    leaves: Sequence[jax.ShapeDtypeStruct], wanted: Sequence[NamedSharding | None]
) -> list[Any]:
    """Return where a state is born in a job: every process can read its scalars.

    Args:
        leaves: The leaves of the state.
        wanted: Where the step wants each.
    """
    every_process = EveryProcess()
    pairs = zip(leaves, wanted, strict=True)
    return [home and every_process.place(len(leaf.shape), home) for leaf, home in pairs]


def born_sharded(
    fun: Callable[..., PyTree],
    fun_args: tuple[PyTree, ...],
    state: PyTree,
    homes: Sequence[NamedSharding | None],
    *,
    in_job: bool,
) -> PyTree:
    """Return what a function makes, each leaf where it lives: no device holds more than its share.

    Args:
        fun: Makes the state.
        fun_args: Its arguments.
        state: Shapes of what it makes.
        homes: Where the step wants each leaf; None for one that may lie anywhere.
        in_job: Whether every process is to read its scalars.
    """
    shapes, tree = jax.tree.flatten(state)
    wanted = readable_places(shapes, homes) if in_job else homes
    args = jax.tree.map(zeros_of_spec, fun_args)
    groups: dict[Any, list[int]] = {}
    for n, sharding in enumerate(wanted):
        groups.setdefault(None if sharding is None else sharding.mesh, []).append(n)
    found: list[PyTree] = [None] * len(wanted)
    for mesh, places in groups.items():

        def some(*args: PyTree, places: list[int] = places) -> list[PyTree]:
            leaves = jax.tree.leaves(fun(*args))
            return [leaves[n] for n in places]

        asked = None if mesh is None else [wanted[n] for n in places]
        if mesh is None or has_devices_here(mesh):
            with kept_programs():
                leaves = jax.jit(some, out_shardings=asked)(*args)
        else:
            leaves = map(_elsewhere, jax.eval_shape(some, *args), asked or ())
        for n, leaf in zip(places, leaves, strict=True):
            found[n] = leaf
    return jax.tree.unflatten(tree, found)


def _elsewhere(aval: jax.ShapeDtypeStruct, sharding: NamedSharding | None) -> jax.Array:
    """Return a leaf that other processes make."""
    return array_of(jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding), [])
