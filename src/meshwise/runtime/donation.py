"""What must hold of arrays before a program that donates some of them runs.

JAX 0.10.2 on several CPU devices ends the process with a segmentation fault when a donated array
is passed again, or when an array that is donated is passed twice; on one device both are errors.
So both are found here, before JAX sees them.  Source: seen with `jax.jit` alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import call, is_, itemgetter
from typing import Any
from weakref import getweakrefcount, ref

import jax
import jax.numpy as jnp

from meshwise.errors import StateLostError
from meshwise.jax_compat.jaxprs import is_tracer
from meshwise.system.identity import Same


def check_alive(leaves: Sequence[Any], names: Sequence[str]) -> None:
    """Refuse arrays that were donated before.

    Raises:
        StateLostError: naming the first of them.
    """
    for leaf, name in zip(leaves, names, strict=True):
        if isinstance(leaf, jax.Array) and not is_tracer(leaf) and leaf.is_deleted():
            raise StateLostError(
                f"argument {name} was donated to an earlier call, which reused its memory; pass "
                "the state which that call returned, or keep the arguments with donate_argnums=()"
            )


def state_lost(num_lost: int, error: BaseException) -> StateLostError:
    """Return the error that says that a step failed too late.

    Args:
        num_lost: Arrays that are gone.
        error: What happened.
    """
    said = str(error) or type(error).__name__
    return StateLostError(
        f"the step failed while {num_lost} donated state arrays were being updated; restore the "
        f"last checkpoint ({said})"
    )


def check_outcome(state: Iterable[Any]) -> None:
    """Refuse what an earlier step is known to have failed to make; nothing is waited for.

    Results of one program fail together, so the first one that can tell speaks for all.

    Raises:
        StateLostError: with what happened.
    """
    for value in state:
        # Random keys cannot tell.
        is_ready = getattr(value, "is_ready", None)
        if is_ready is not None:
            if not value.is_deleted() and is_ready():
                lost_before([value])
            return


def lost_before(state: Sequence[Any]) -> None:
    """Refuse state that an earlier step did not finish, though it had returned.

    Args:
        state: What the step was given.

    Raises:
        StateLostError: with what happened.
    """
    for array in state:
        try:
            jax.block_until_ready(array)
        except jax.errors.JaxRuntimeError as error:
            raise StateLostError(
                "an earlier step failed while it updated donated state, after it had returned; "
                f"restore the last checkpoint ({error})"
            ) from error


def without_repeats(leaves: Sequence[Any], donated: Sequence[int]) -> Sequence[Any]:
    """Return the leaves with a copy in place of each donated array that occurs more than once.

    As at the first step of a state whose average of the parameters starts as the parameters.
    """
    if len(set(map(id, leaves))) == len(leaves):
        return leaves
    keys = list(map(Same, leaves))
    times = Counter(keys)
    return _copied(leaves, [i for i in donated if times[keys[i]] > 1])


def without_shared_memory(
    leaves: Sequence[Any], donated: Sequence[int], fresh: Collection[int] = ()
) -> Sequence[Any]:
    """Return the leaves with a copy in place of each donated array that shares memory with another.

    `jax.device_put` of one array twice gives two arrays that share memory on its first device.
    Looking takes tens of microseconds an array.

    Args:
        leaves: Arguments.
        donated: Positions that are donated.
        fresh: Positions of arrays that are known to share no memory.
    """
    unknown = [i for i in donated if i not in fresh and isinstance(leaves[i], jax.Array)]
    if not unknown:
        return leaves
    types = {(leaves[i].shape, leaves[i].dtype) for i in unknown}
    pointers = [
        _pointers(leaf) if isinstance(leaf, jax.Array) and (leaf.shape, leaf.dtype) in types else []
        for leaf in leaves
    ]
    times = Counter(pointer for some in pointers for pointer in some)
    shared = [i for i in unknown if any(times[pointer] > 1 for pointer in pointers[i])]
    return _copied(leaves, shared)


class Handover:
    """Which arguments of a call are what the call before returned in their place.

    A loop over steps asks at every step, so `is_whole` makes no Python call per array.
    """

    def __init__(self, aliases: Sequence[tuple[int, int]], others: Sequence[int]) -> None:
        """Nothing has been returned yet.

        Args:
            aliases: Pairs (position of a donated argument, position of its successor).
            others: Positions of the arguments that are not donated.
        """
        self._donated = tuple(position for position, _ in aliases)
        self._of_others = _picker(others)
        self._of_arguments = _picker(self._donated)
        self._of_results = _picker(tuple(out for _, out in aliases))
        self._returned: tuple[ref[Any], ...] = ()

    def remember(self, results: Sequence[Any]) -> None:
        """Take note of what a call returned, without keeping it alive."""
        self._returned = tuple(map(ref, self._of_results(results)))

    def fresh(self, leaves: Sequence[Any]) -> set[int]:
        """Positions of arguments that the last call returned: a program's results share nothing."""
        return {
            position
            for position, returned in zip(self._donated, self._returned, strict=False)
            if returned() is leaves[position]
        }

    def is_whole(self, leaves: Sequence[Any]) -> bool:
        """Return whether all donated arguments are fresh, alive, and passed once.

        Args:
            leaves: Arguments; those that are not donated may be anything.
        """
        state = self._of_arguments(leaves)
        if len(self._returned) != len(state) or not all(map(is_, map(call, self._returned), state)):
            return False
        # What is in the state has a weak reference, from `remember`.
        may_repeat = any(map(getweakrefcount, self._of_others(leaves)))
        if may_repeat and len(set(map(id, leaves))) < len(leaves):
            return False
        return True not in [array.is_deleted() for array in state]


def _picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Return what takes the items at some positions, as fast as Python can."""
    if len(positions) > 1:
        return itemgetter(*positions)
    return lambda items: tuple(items[position] for position in positions)


def _copied(leaves: Sequence[Any], positions: Sequence[int]) -> Sequence[Any]:
    result = list(leaves)
    for position in positions:
        if isinstance(result[position], jax.Array):
            result[position] = result[position].copy()
    return result


def _pointers(leaf: jax.Array) -> list[int]:
    if is_tracer(leaf):
        return []
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return [shard.data.unsafe_buffer_pointer() for shard in leaf.addressable_shards]
