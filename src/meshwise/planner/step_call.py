"""A call of a user's step, as planning takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from meshwise.jax_compat.jaxprs import PyTree
from meshwise.trace.step import StepSignature


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCall:
    """A call of a step.

    Attributes:
        fun: The step, static arguments bound.
        args: Positional arguments; arrays or `ShapeDtypeStruct`s.
        kwargs: Keyword arguments, likewise.
        signature: Which arguments are batch data.
    """

    fun: Callable[..., PyTree]
    args: tuple[PyTree, ...]
    kwargs: Mapping[str, PyTree]
    signature: StepSignature

    @property
    def parameters(self) -> tuple[tuple[int, str], ...]:
        """Number in the user's call and name (may be empty) of each positional argument."""
        return self.signature.parameters or tuple((n, "") for n in range(len(self.args)))
