"""What a primitive must state: its loops, its local form, its FLOP.

A family file has a `TABLE`: primitive name -> `PrimitiveRule`; `rules.table` joins them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.typing import ArrayLike

from meshwise.graph.graph import Scratch
from meshwise.graph.loops import DimMap, LoopRule


@dataclass(frozen=True, slots=True)
class Equation:
    """One equation of a flat program, as rules see it.

    Attributes:
        primitive: The JAX primitive.
        params: Its parameters.
        in_avals: Shapes and dtypes of the operands.
        out_avals: Shapes and dtypes of the results.
        constants: For each operand its value if it is known at trace time, else None.
    """

    primitive: Primitive
    params: dict[str, Any]
    in_avals: tuple[ShapedArray, ...]
    out_avals: tuple[ShapedArray, ...]
    constants: tuple[Any, ...]

    @property
    def name(self) -> str:
        """Primitive name."""
        return self.primitive.name


class Shards(ABC):
    """How the loops of one equation are split where its local form runs.

    In space a loop is split in contiguous blocks over mesh axes; in time over micro-batches.

    Attributes:
        rule: The loops.
        is_planned: Whether the local form becomes a part of a program that is planned; if not, it
            is what a device runs.
    """

    rule: LoopRule
    is_planned: ClassVar[bool] = False

    @abstractmethod
    def parts(self, loop: int) -> int:
        """Return into how many parts a loop is split."""

    @abstractmethod
    def block_start(self, loop: int) -> jax.Array | int:
        """Return the first global index of the local block; only for loops with `block=True`."""

    @abstractmethod
    def global_index(self, loop: int) -> jax.Array:
        """Return the global indices (int32, length of the local loop) of the local iterations."""

    @abstractmethod
    def is_first(self, loop: int) -> jax.Array | bool:
        """Return whether this is the first part of a loop, where a replicated term counts."""

    def is_first_device(self) -> jax.Array | bool:
        """Return whether this is the first device of the mesh."""
        return True

    def axis_names(self, loop: int) -> tuple[str, ...]:
        """Return the names of the mesh axes that split a loop; none where it is split in time."""
        del loop
        return ()

    def local_size(self, loop: int) -> int:
        """Return the local trip count of a loop."""
        return self.rule.loops[loop].size // self.parts(loop)

    def local_shape(self, shape: Sequence[int], dims: DimMap) -> tuple[int, ...]:
        """Return the local shape of a tensor whose dims follow `dims`."""
        return tuple(
            size // math.prod(self.parts(loop) for loop in loops)
            for size, loops in zip(shape, dims, strict=True)
        )

    def result_shape(self, eqn: Equation, index: int = 0) -> tuple[int, ...]:
        """Return the local shape of a result."""
        return self.local_shape(eqn.out_avals[index].shape, self.rule.results[index])


RuleFn = Callable[[Equation], LoopRule]
LocalFn = Callable[[Equation, Shards, Sequence[jax.Array]], list[jax.Array]]
FlopFn = Callable[[Equation], float]
ScratchFn = Callable[[Equation], Scratch | None]
DetailFn = Callable[[Equation], str]
DimOrdersFn = Callable[[Equation], tuple[tuple[int, ...], ...]]


def rebind(eqn: Equation, operands: Sequence[ArrayLike], **changes: object) -> list[jax.Array]:
    """Run the primitive itself on local operands, with some parameters replaced.

    Args:
        eqn: The equation.
        operands: The local operands.
        **changes: Parameters in place of those of the equation.

    Returns:
        The results, a list also where there is one.
    """
    out = eqn.primitive.bind(*operands, **{**eqn.params, **changes})
    return list(out) if eqn.primitive.multiple_results else [out]


def local_rebind(eqn: Equation, shards: Shards, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Return the local form of a primitive whose parameters name no sizes."""
    del shards
    return rebind(eqn, operands)


def no_dim_orders(eqn: Equation) -> tuple[tuple[int, ...], ...]:
    """Return the orders of dims of a primitive that is no convolution: none."""
    del eqn
    return ()


def result_elements(eqn: Equation) -> float:
    """Return the FLOP of a primitive that does one operation for each element of its results."""
    return float(sum(math.prod(aval.shape) for aval in eqn.out_avals))


def no_flop(eqn: Equation) -> float:
    """Return the FLOP of a primitive that only moves data."""
    del eqn
    return 0.0


def no_scratch(eqn: Equation) -> Scratch | None:
    """Return what a primitive makes beside its results: nothing."""
    del eqn


@dataclass(frozen=True, slots=True)
class PrimitiveRule:
    """A row of the table.

    Attributes:
        rule: Returns the loops of an equation.
        local: Runs the equation on local tiles.
        flop: Returns the FLOP of the equation on whole tensors.
        heavy: Whether it counts as a dense product or convolution.
        dim_orders: Orders of dims of an equation, as in `graph.Operator`.
        scratch: What it makes beside its results, as in `graph.Operator`.
        detail: Returns a text of what an equation does; None: its parameters say it.
    """

    rule: RuleFn
    local: LocalFn = local_rebind
    flop: FlopFn = result_elements
    heavy: bool = False
    dim_orders: DimOrdersFn = no_dim_orders
    scratch: ScratchFn = no_scratch
    detail: DetailFn | None = None
