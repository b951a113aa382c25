"""What stands between the first product and the softmax, so that it can be made block by block.

Every value has the dims of the scores (batch ..., group ..., row, key); a dim along which it is
constant has size 1.  Masks that follow from positions are computed from the positions of each
block, and so are never held whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import jax.numpy as jnp
from jax import Array, lax

from meshwise.rules.steps import Elementwise, Number

ROW, KEY = -2, -1


@dataclass(frozen=True, slots=True)
class Positions:
    """Numbers of the rows or of the keys.

    Attributes:
        dim: `ROW` or `KEY`.
        dtype: NumPy-style name.
    """

    dim: int
    dtype: str


ScoreStep: TypeAlias = Positions | Number | Elementwise


@dataclass(frozen=True, slots=True)
class Scores:
    """How scores follow from the first product.

    Attributes:
        steps: Value 0 is the product, then come the other operands, then the results of the
            steps in order; the last value is that of the scores.
    """

    steps: tuple[ScoreStep, ...]

    @property
    def primitives(self) -> frozenset[str]:
        """Names of the primitives of its element-wise operations."""
        return frozenset(s.primitive.name for s in self.steps if isinstance(s, Elementwise))

    def of(
        self,
        product: Array,
        others: Sequence[Array],
        row_start: Array | int,
        key_start: Array | int,
    ) -> Array:
        """Return the scores of a block.

        Args:
            product: The block of the first product.
            others: The same block of the other operands.
            row_start: Number of its first row.
            key_start: Number of its first key.
        """
        values: list[Array] = [product, *others]
        for step in self.steps:
            match step:
                case Positions(dim=dim, dtype=dtype):
                    shape = [1] * product.ndim
                    shape[dim] = product.shape[dim]
                    start = jnp.asarray(row_start if dim == ROW else key_start, jnp.int32)
                    # A narrow type rounds each number once.
                    dims = lax.broadcasted_iota(jnp.int32, shape, product.ndim + dim)
                    values.append((dims + start).astype(dtype))
                case Number():
                    values.append(step.made())
                case Elementwise():
                    values.append(step.made(values))
        return values[-1] if self.steps else product
