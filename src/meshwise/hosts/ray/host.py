"""The process of a host, as the driver calls it: an actor of Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from meshwise.errors import ClusterError
from meshwise.hosts.member import JobMember
from meshwise.hosts.ray import joining
from meshwise.hosts.ray.host_request import ray_module
from meshwise.hosts.ray.trees import Skeleton, Trees
from meshwise.jax_compat.jaxprs import PyTree


@dataclass(frozen=True, slots=True)
class Stored:
    """A leaf of arguments that lives on the hosts.

    Attributes:
        number: Its number.
    """

    number: int


@dataclass(frozen=True, slots=True)
class Staying:
    """A leaf of results that stays on the hosts, where it is no array.

    Attributes:
        value: The value; None in what the driver gets.
    """

    value: Any = None


@dataclass(frozen=True, slots=True)
class ArrayType:
    """A leaf of results that is an array, which stays on the hosts.

    Attributes:
        shape: Its shape.
        dtype: Its dtype.
    """

    shape: tuple[int, ...]
    dtype: Any


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a call.

    Attributes:
        tree: The number of its structure.
        leaves: Its leaves.
        skeleton: The structure, if the other side does not know it yet.
    """

    tree: int
    leaves: tuple[Any, ...]
    skeleton: Skeleton | None = None


@dataclass(frozen=True, slots=True)
class Unsent:
    """In place of a result that cannot be sent.

    Attributes:
        text: Why.
    """

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCall:
    """A call of a function on every host.

    Attributes:
        fun: The function.
        args: Its arguments.
        keywords: The names of the last ones, which are passed by keyword.
        known_trees: How many structures the driver knows, those of the arguments apart.
        first_result: The number of the first leaf of the result; the others follow.
        dropped: Numbers of what the driver does not hold any more.
    """

    fun: Callable[..., PyTree]
    args: tuple[Argument, ...]
    keywords: tuple[str, ...]
    known_trees: int
    first_result: int
    dropped: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """The bytes of its arrays that are sent."""
        return sum(getattr(leaf, "nbytes", 0) for each in self.args for leaf in each.leaves)


class Host:
    """A process of a job that does what the driver says, as all others do."""

    def __init__(self) -> None:
        self._trees = Trees()
        self._values: dict[int, Any] = {}

    def place(self) -> tuple[str, str]:
        """Return the node of Ray, and the address at which this process can coordinate the job."""
        context = ray_module().get_runtime_context()
        return context.get_node_id(), joining.coordinator_here()

    def join(self, member: JobMember, is_one_node: bool) -> None:
        """Join the job.

        Args:
            member: The place of this process.
            is_one_node: Whether all processes run on one node of Ray.
        """
        joining.join(member, is_one_node=is_one_node)

    def call(self, call: HostCall) -> Argument | Unsent | None:
        """Call a function; arrays that it returns stay here.

        Args:
            call: The function and its arguments.

        Returns:
            The result without its arrays; None where process 0 tells it.

        Raises:
            ClusterError: in place of an error of the function that cannot be sent.
            Exception: what the function raised.
        """
        try:
            return self._called(call)
        except Exception as error:
            if _can_be_sent(error):
                raise
            # Ray would take it for the end of this process.
            raise ClusterError(f"{type(error).__name__}: {error}") from error

    def _called(self, call: HostCall) -> Argument | Unsent | None:
        for number in call.dropped:
            self._values.pop(number, None)
        self._trees.forget(call.known_trees)
        args = list(map(self._received, call.args))
        split = len(args) - len(call.keywords)
        keywords = dict(zip(call.keywords, args[split:], strict=True))
        leaves, tree = jax.tree.flatten(call.fun(*args[:split], **keywords))
        told = tuple(self._kept(n, leaf) for n, leaf in enumerate(leaves, call.first_result))
        known = self._trees.number(tree)
        number = self._trees.learn(tree) if known is None else known
        if jax.process_index():
            return None
        found = Argument(number, told, None if known is not None else Skeleton.of(tree))
        return _unsent(found) or found

    def wait(self, number: int) -> None:
        """Wait until an array is computed.

        Args:
            number: Its number.
        """
        jax.block_until_ready(self._values[number])

    def pieces(self, number: int) -> list[tuple[tuple[slice, ...], np.ndarray]]:
        """Return the parts of an array that lie here, each in one host only, with their places.

        Args:
            number: Its number.
        """
        return list(_pieces(self._values[number]))

    def _received(self, argument: Argument) -> PyTree:
        """Return an argument; its structure is known from now on."""
        if argument.skeleton is not None:
            self._trees.learn(argument.skeleton.structure)
        leaves = [
            self._values[leaf.number] if isinstance(leaf, Stored) else leaf
            for leaf in argument.leaves
        ]
        return jax.tree.unflatten(self._trees[argument.tree], leaves)

    def _kept(self, number: int, leaf: Any) -> Any:
        """Keep a leaf of a result, if it stays here, and return what the driver gets."""
        if isinstance(leaf, jax.Array):
            self._values[number] = leaf
            return ArrayType(leaf.shape, leaf.dtype)
        if isinstance(leaf, Staying):
            self._values[number] = leaf.value
            return Staying()
        return leaf


def _can_be_sent(error: Exception) -> bool:
    """Return whether an error can be read where it is sent."""
    pickle = ray_module("ray.cloudpickle")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return False
    return True


def _unsent(result: Argument) -> Unsent | None:
    """Return why a result cannot be sent; None if it can."""
    try:
        # Without a copy of its arrays.
        ray_module("ray.cloudpickle").dumps(result, protocol=5, buffer_callback=lambda _: None)
    except Exception as error:
        return Unsent(f"{type(error).__name__}: {error}")
    return None


def _pieces(array: jax.Array) -> Iterator[tuple[tuple[slice, ...], np.ndarray]]:
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            yield shard.index, np.asarray(shard.data)
