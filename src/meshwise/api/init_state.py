"""What `step.init` takes: what makes the state, then the other arguments of the step."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from meshwise.api.arguments import ArgumentOptions, Binding, step_name
from meshwise.api.same_arguments import check_same_arguments, named_leaves
from meshwise.errors import TraceError
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


def num_states(options: ArgumentOptions, num_others: int, keywords: Iterable[str]) -> int:
    """Return how many arguments of a step what makes its state has to make.

    Args:
        options: The arguments of the step.
        num_others: How many are given by position.
        keywords: Names of those given by keyword.
    """
    given = set(keywords)
    required = [p.name for p in options.parameters or () if p.default is p.empty]
    return max(1, sum(name not in given for name in required) - num_others)


def state_places(binding: Binding, count: int) -> list[StatePlace]:
    """Return the first arguments that are neither static nor batch data; one at least.

    Args:
        binding: How the arguments are taken apart.
        count: How many arguments are state.

    Raises:
        TraceError: there are fewer.
    """
    dynamic = [slot.position for slot in binding.slots if slot.position not in binding.static]
    batch = binding.signature.batch_argnums
    free = [k for k in range(len(dynamic)) if k not in batch]
    if count == 1:
        order = free[0] if free else 0
        return [StatePlace(dynamic[order] if dynamic else 0, order)]
    if len(free) < count:
        labels = binding.signature.labels
        raise TraceError(
            f"init of {binding.step_name} lacks arguments: {count} of {', '.join(labels)} are not "
            "given, so they would be state, but batch data (batch_argnums) is "
            f"{', '.join(labels[k] for k in batch)}; pass all that is not state after the "
            "arguments of the function that makes it, as step.init(create_state, key, batch)"
        )
    return [StatePlace(dynamic[k], k) for k in free[:count]]


def states_of(
    fun: Callable[..., PyTree], state: PyTree, binding: Binding, places: Sequence[StatePlace]
) -> tuple[PyTree, ...]:
    """Return the state as arguments of the step.

    Args:
        fun: What makes the state.
        state: What it makes.
        binding: How the arguments are taken apart.
        places: Which of them are state.

    Raises:
        TraceError: the step takes several, and the state is no tuple of so many.
    """
    if len(places) == 1:
        return (state,)
    if isinstance(state, tuple | list) and len(state) == len(places):
        return tuple(state)
    labels = {slot.position: slot.label for slot in binding.slots}
    wanted = " and ".join(labels[place.number] for place in places)
    what = f"{len(state)}" if isinstance(state, tuple | list) else "one value"
    raise TraceError(
        f"init of {binding.step_name} is not given {wanted}, so {step_name(fun)} has to return a "
        f"tuple of {len(places)}, and it returns {what}; what it does not make comes after its "
        "own arguments, as step.init(create_state, key, batch)"
    )


def leaves_at(args: tuple[PyTree, ...], places: Sequence[StatePlace]) -> list[int]:
    """Return the numbers of the leaves of arguments among those of all arguments.

    Args:
        args: The arguments that are not static.
        places: Which of them are meant.
    """
    leaves, tree = jax.tree.flatten(args)
    numbered = tree.unflatten(range(len(leaves)))
    return jax.tree.leaves([numbered[place.order] for place in places])


def planned_for_state(
    planned: Mapping[Hashable, PlannedCall], state: PyTree
) -> tuple[Hashable, list[int]] | None:
    """Return the key of a planned step that takes such a state, and positions of its leaves.

    A tuple may be several arguments of the step, in their order.

    Args:
        planned: Planned calls of the step.
        state: Shapes of the state.

    Returns:
        None if there is none.
    """
    several = tuple(state) if isinstance(state, tuple | list) else ()
    for parts in ((state,), several):
        for key, call in planned.items():
            places = _places_of(parts, call)
            if places:
                return key, places
    return None


def _places_of(parts: Sequence[PyTree], call: PlannedCall) -> list[int]:
    """Return where the leaves of some arguments are among those of a call; none if not all are."""
    user = call.user
    args, _ = jax.tree.unflatten(user.in_tree, range(len(user.in_avals)))
    arguments = iter([jax.tree.leaves(argument) for argument in args])
    found: list[int] = []
    for part in parts:
        wanted = [(x.shape, x.dtype) for x in jax.tree.leaves(part)]
        for places in arguments:
            avals = [user.in_avals[i] for i in places]
            if places and [(a.shape, a.dtype) for a in avals] == wanted:
                found += places
                break
        else:
            return []
    return found


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
