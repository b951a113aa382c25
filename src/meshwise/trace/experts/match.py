"""Experts: ragged products of the same rows, and a last one of an element-wise function of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from meshwise.jax_compat.jaxprs import Eqn, FlatJaxpr, Literal, Var
from meshwise.rules.products.experts import run_experts
from meshwise.rules.products.row_function import RowFunction, RowProduct, RowStep
from meshwise.rules.steps import Elementwise, Number
from meshwise.trace.attention.labels import ELEMENTWISE
from meshwise.trace.layers.equations import dependent, variables

PRODUCT = "ragged_dot_general"
# Primitives without which there are no experts.
NEEDED = frozenset({PRODUCT})
# Dims of the matrices of all groups.
_MATRIX_DIMS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The experts of one layer.

    Attributes:
        eqns: Their equations; the result of the last one is replaced.
        function: The function that they compute for a row.
        num_outer: Dims of the rows before the ragged one.
        rows: The variable of the rows.
        sizes: The variable of the sizes of groups.
        matrices: The variables of the matrices.
    """

    eqns: tuple[Eqn, ...]
    function: RowFunction
    num_outer: int
    rows: Var
    sizes: Var
    matrices: tuple[Var, ...]

    @property
    def last(self) -> Eqn:
        """The equation whose result is replaced."""
        return self.eqns[-1]

    @property
    def inputs(self) -> list[Var]:
        """All variables that it takes."""
        return [self.rows, self.sizes, *self.matrices]

    def run(self, inputs: Sequence[Array], /) -> Array:
        """Return the result of the last product, by the operator.

        Args:
            inputs: Values of `inputs`.
        """
        rows, sizes, *matrices = inputs
        return run_experts(self.function, self.num_outer, rows, sizes, matrices)


def matches(jaxpr: FlatJaxpr, varied: Sequence[Var]) -> list[Match]:
    """Find experts of two or more products; nothing outside reads their inner values.

    Args:
        jaxpr: A jaxpr whose calls were taken apart.
        varied: Its arguments for which gradients are taken; if any, all matrices must depend on
            them, since the operator computes the gradients of all.
    """
    follows = dependent(jaxpr.eqns, varied)
    makers = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    groups = _groups_of(jaxpr)
    readers: dict[Var, list[int]] = {}
    for n, eqn in enumerate(jaxpr.eqns):
        for v in variables(eqn.invars):
            readers.setdefault(v, []).append(n)
    numbers = {id(eqn): n for n, eqn in enumerate(jaxpr.eqns)}
    returned = set(variables(jaxpr.outvars))
    taken: set[int] = set()
    found: list[Match] = []
    for eqn in reversed(jaxpr.eqns):
        if eqn.primitive.name != PRODUCT or numbers[id(eqn)] in taken:
            continue
        match = _matched(eqn, makers, groups)
        if match is None or (varied and not all(v in follows for v in match.matrices)):
            continue
        own = {numbers[id(e)] for e in match.eqns}
        inner = [v for e in match.eqns[:-1] for v in e.outvars]
        if all(v not in returned and own.issuperset(readers.get(v, ())) for v in inner):
            taken |= own
            found.append(match)
    return found


class _Writing:
    """Steps while they are written; lives only inside `_matched`."""

    def __init__(self, makers: Mapping[Var, Eqn], groups: Mapping[Var, Var], last: Eqn) -> None:
        self.makers = makers
        self.groups = groups
        self.sizes = last.invars[2]
        self.numbers = last.params["ragged_dot_dimension_numbers"]
        self.rows: Var | None = None
        self.matrices: list[Var] = []
        self.steps: list[RowStep] = []
        self.eqns: list[Eqn] = []
        self._known: dict[Var, int] = {}

    def product(self, eqn: Eqn, *, is_last: bool = False) -> int | None:
        """Write a product of rows, or the last one and all before it; None if it does not fit."""
        lhs, rhs, sizes = eqn.invars
        numbers = eqn.params["ragged_dot_dimension_numbers"]
        (of_rows, of_matrix), batch = numbers.dot_dimension_numbers
        if (
            sizes is not self.sizes
            or tuple(map(tuple, batch)) != ((), ())
            or list(of_rows) != [len(lhs.aval.shape) - 1]
            or len(of_matrix) != 1
            or len(rhs.aval.shape) != _MATRIX_DIMS
            or list(numbers.rhs_group_dimensions) != [0]
            or numbers.lhs_ragged_dimensions != self.numbers.lhs_ragged_dimensions
            or isinstance(rhs, Literal)
            or rhs in self.matrices
        ):
            return None
        value = self._value(lhs) if is_last else self._of_rows(lhs)
        if value is None:
            return None
        self.matrices.append(rhs)
        dtype = str(eqn.outvars[0].aval.dtype)
        product = RowProduct(
            value, len(self.matrices) - 1, of_matrix[0] == 2, dtype, eqn.params["precision"]
        )
        return self._made(eqn, product)

    def _made(self, eqn: Eqn, step: RowStep) -> int:
        self.steps.append(step)
        self.eqns.append(eqn)
        self._known[eqn.outvars[0]] = len(self.steps)
        return len(self.steps)

    def _value(self, atom: Var) -> int | None:
        """Return the number of a value with rows; None if there is none."""
        if isinstance(atom, Literal):
            return None
        if atom in self._known:
            return self._known[atom]
        eqn = self.makers.get(atom)
        if eqn is not None and self.groups.get(atom) is self.sizes:
            return self.product(eqn) if eqn.primitive.name == PRODUCT else self._elementwise(eqn)
        return self._of_rows(atom)

    def _of_rows(self, atom: Var) -> int | None:
        if isinstance(atom, Literal) or self.rows not in (None, atom):
            return None
        self.rows = atom
        return 0

    def _elementwise(self, eqn: Eqn) -> int | None:
        if len(eqn.outvars) != 1:
            return None
        inputs: list[int] = []
        for atom in eqn.invars:
            number = self._number(atom)
            value = self._value(atom) if number is None else number
            if value is None:
                return None
            inputs.append(value)
        params = tuple(sorted(eqn.params.items()))
        return self._made(eqn, Elementwise(eqn.primitive, params, tuple(inputs)))

    def _number(self, atom: Var) -> int | None:
        maker = None if isinstance(atom, Literal) else self.makers.get(atom)
        if maker is not None and maker.primitive.name == "broadcast_in_dim":
            (atom, *_) = maker.invars
        if not isinstance(atom, Literal) or atom.aval.shape != ():
            return None
        self.steps.append(Number(jnp.asarray(atom.val).item(), str(atom.aval.dtype)))
        return len(self.steps)


def _groups_of(jaxpr: FlatJaxpr) -> dict[Var, Var]:
    """Return, for each value made from products element by element, the sizes of their groups."""
    found: dict[Var, Var] = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == PRODUCT:
            found[eqn.outvars[0]] = eqn.invars[2]
        elif eqn.primitive.name in ELEMENTWISE:
            of_inputs = [found[v] for v in variables(eqn.invars) if v in found]
            if of_inputs:
                found.update((v, of_inputs[0]) for v in eqn.outvars)
    return found


def _matched(last: Eqn, makers: Mapping[Var, Eqn], groups: Mapping[Var, Var]) -> Match | None:
    """Return the experts that end in this product; None if it is alone or does not fit."""
    writing = _Writing(makers, groups, last)
    if (
        writing.product(last, is_last=True) is None
        or writing.rows is None
        or len(writing.matrices) < 2
    ):
        return None
    sizes = last.invars[2]
    avals = [v.aval for v in (writing.rows, *writing.matrices)]
    if isinstance(sizes, Literal) or not all(jnp.issubdtype(x.dtype, jnp.floating) for x in avals):
        return None
    (ragged,) = writing.numbers.lhs_ragged_dimensions
    return Match(
        eqns=tuple(writing.eqns),
        function=RowFunction(tuple(writing.steps)),
        num_outer=ragged,
        rows=writing.rows,
        sizes=sizes,
        matrices=tuple(writing.matrices),
    )
