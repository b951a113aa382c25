"""The function that experts compute for a row: products, and element-wise operations between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from meshwise.rules.steps import Elementwise, Number


@dataclass(frozen=True, slots=True)
class RowProduct:
    """The product of a value with the matrix of the group.

    Attributes:
        value: Number of the value.
        matrix: Number of the matrix.
        is_turned: Whether the contracted dim of the matrix is its last one.
        dtype: The dtype of the result, NumPy-style name.
        precision: As in `lax.dot_general`.
    """

    value: int
    matrix: int
    is_turned: bool
    dtype: str
    precision: Any

    def num_columns(self, shapes: Sequence[tuple[int, ...]]) -> int:
        """Return the columns of the product.

        Args:
            shapes: The shapes of the matrices of all groups: (group, one, other).
        """
        return shapes[self.matrix][1 if self.is_turned else 2]

    def made(self, value: Array, matrix: Array) -> Array:
        """Return the product: (row, column)."""
        return lax.dot_general(
            value,
            matrix,
            (((1,), (int(self.is_turned),)), ((), ())),
            precision=self.precision,
            preferred_element_type=jnp.dtype(self.dtype),
        )

    def of_matrix(self, value: Array, cotangent: Array, dtype: np.dtype) -> Array:
        """Return the gradient for the matrix: sums over rows.

        Args:
            value: What was multiplied: (row, feature).
            cotangent: The cotangent of the product: (row, column).
            dtype: The dtype of the sums.
        """
        pair = (cotangent, value) if self.is_turned else (value, cotangent)
        return lax.dot_general(
            *pair, (((0,), (0,)), ((), ())), precision=self.precision, preferred_element_type=dtype
        )


RowStep: TypeAlias = RowProduct | Number | Elementwise


@dataclass(frozen=True, slots=True)
class RowFunction:
    """A function of rows, each by itself, and of matrices.

    Attributes:
        steps: Value 0 is the rows, then come the results of the steps in order; the last one is a
            product, and the result.  Each matrix is in one product.
    """

    steps: tuple[RowStep, ...]

    @property
    def last(self) -> RowProduct:
        """The product that is the result."""
        step = self.steps[-1]
        assert isinstance(step, RowProduct)
        return step

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the result."""
        return jnp.dtype(self.last.dtype)

    def num_columns(self, shapes: Sequence[tuple[int, ...]]) -> int:
        """Return the columns of the result.

        Args:
            shapes: The shapes of the matrices of all groups: (group, one, other).
        """
        return self.last.num_columns(shapes)

    def inner_dims(self, shapes: Sequence[tuple[int, ...]]) -> dict[int, int]:
        """Return the dim of each matrix that follows the width between the products.

        Only the last product contracts this width, so devices with parts of it have partial sums.

        Args:
            shapes: The shapes of the matrices of all groups: (group, one, other).

        Returns:
            Dims by number of the matrix; none where there is no such width.
        """
        *first, last = self.products
        found = {step.matrix: 1 if step.is_turned else 2 for step in first}
        found[last.matrix] = 2 if last.is_turned else 1
        widths = {shapes[matrix][dim] for matrix, dim in found.items()}
        is_one = len(found) == len(self.products) and len(widths) == 1
        return found if first and is_one and not any(step.value for step in first) else {}

    @property
    def products(self) -> tuple[RowProduct, ...]:
        """Its products in order."""
        return tuple(step for step in self.steps if isinstance(step, RowProduct))

    def of(self, rows: Array, matrices: Sequence[Array]) -> Array:
        """Return the result: (row, column).

        Args:
            rows: (row, feature).
            matrices: The matrices of the group of these rows.
        """
        return self._values(rows, matrices, None)[-1]

    def gradients(
        self, rows: Array, matrices: Sequence[Array], cotangent: Array, dtypes: Sequence[np.dtype]
    ) -> tuple[Array, list[Array]]:
        """Return the gradients for rows and for matrices.

        Args:
            rows: (row, feature).
            matrices: The matrices of the group of these rows.
            cotangent: The cotangent of the result.
            dtypes: The dtypes of the gradients for the matrices.
        """
        shapes = jax.eval_shape(lambda: self._products(self._values(rows, matrices, None)))
        # Zeros added to each product: their cotangents are those of the products.
        nothing = [jnp.zeros(x.shape, x.dtype) for x in shapes]

        def run(rows: Array, terms: list[Array]) -> tuple[Array, list[Array]]:
            values = self._values(rows, matrices, terms)
            return values[-1], [values[step.value] for step in self.products]

        _, pull, taken = jax.vjp(run, rows, nothing, has_aux=True)
        of_rows, of_products = pull(cotangent)
        found = {
            step.matrix: step.of_matrix(value, pulled, dtypes[step.matrix])
            for step, value, pulled in zip(self.products, taken, of_products, strict=True)
        }
        return of_rows, [found[k] for k in range(len(matrices))]

    def _values(
        self, rows: Array, matrices: Sequence[Array], terms: Sequence[Array] | None
    ) -> list[Array]:
        """Return all values; terms are added to the products."""
        values, rest = [rows], iter(terms or ())
        for step in self.steps:
            match step:
                case RowProduct():
                    made = step.made(values[step.value], matrices[step.matrix])
                    values.append(made if terms is None else made + next(rest))
                case Number():
                    values.append(step.made())
                case Elementwise():
                    values.append(step.made(values))
        return values

    def _products(self, values: Sequence[Array]) -> list[Array]:
        return [
            value
            for step, value in zip(self.steps, values[1:], strict=True)
            if isinstance(step, RowProduct)
        ]
