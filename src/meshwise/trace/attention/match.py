"""Softmax between two products: attention, found by what is computed and not by names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from meshwise.jax_compat.jaxprs import Eqn, FlatJaxpr, Literal, Var
from meshwise.rules.attention.blocks import Attention
from meshwise.rules.attention.operators import attend
from meshwise.rules.attention.scores import (
    KEY,
    ROW,
    Positions,
    Scores,
    ScoreStep,
)
from meshwise.rules.steps import Elementwise, Number
from meshwise.trace.attention.labels import (
    ELEMENTWISE,
    MAX,
    NUMBER,
    OUTSIDE,
    POSITIONS,
    PRODUCT,
    SUM,
    Labels,
    Node,
    Value,
    followed,
    labels_in,
    number,
    reduces,
    reshaped,
)
from meshwise.trace.layers.equations import dependent, variables

# What attention is made of.
NEEDED = frozenset({"dot_general", "exp", "reduce_max", "reduce_sum"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """One attention.

    Attributes:
        first: The equation of the first product.
        last: That of the second, whose result is replaced.
        attention: What is computed.
        operands: Variables of queries, keys and values, each with the order in which the operator
            takes its dims.
        others: Variables of other operands of the scores, with the dims of the scores that their
            own dims follow.
        order: For each dim of the second product's result the dim of the operator's result.
    """

    first: Eqn
    last: Eqn
    attention: Attention
    operands: tuple[tuple[Var, tuple[int, ...]], ...]
    others: tuple[tuple[Var, tuple[int | None, ...]], ...]
    order: tuple[int, ...]

    @property
    def inputs(self) -> list[Var]:
        """All variables that it takes."""
        return [v for v, _ in (*self.operands, *self.others)]

    @property
    def num_keys(self) -> int:
        """Keys of a row of scores."""
        keys, order = self.operands[1]
        return keys.aval.shape[order[-2]]

    def run(self, inputs: Sequence[Array], /) -> Array:
        """Return the result of the second product, by the operator.

        Args:
            inputs: Values of `inputs`.
        """
        operands, others = inputs[: len(self.operands)], inputs[len(self.operands) :]
        queries, keys, values = (
            lax.transpose(x, order) for x, (_, order) in zip(operands, self.operands, strict=True)
        )
        rank = queries.ndim
        spread = [_spread(x, dims, rank) for x, (_, dims) in zip(others, self.others, strict=True)]
        return lax.transpose(attend(self.attention, queries, keys, values, spread), self.order)


def _spread(value: Array, dims: Sequence[int | None], rank: int) -> Array:
    """Return a value with the dims of the scores."""
    own = [(dim, k) for k, dim in enumerate(dims) if dim is not None]
    shape = [1] * rank
    for dim, k in own:
        shape[dim] = value.shape[k]
    order = [k for _, k in sorted(own)]
    rest = [k for k in range(value.ndim) if k not in order]
    return lax.transpose(value, (*rest, *order)).reshape(shape)


def matches(jaxpr: FlatJaxpr, varied: Iterable[Var]) -> list[Match]:
    """Find all attention whose scores and weights nothing else reads.

    Args:
        jaxpr: A jaxpr whose calls were taken apart.
        varied: Its arguments for which something is differentiated: what is added to scores or
            multiplied with them must not follow from them.
    """
    follows = dependent(jaxpr.eqns, varied)
    found = [
        match
        for match in all_attention(jaxpr)
        if not any(
            v in follows and jnp.issubdtype(v.aval.dtype, jnp.inexact) for v, _ in match.others
        )
    ]
    return _apart(jaxpr, found)


def all_attention(jaxpr: FlatJaxpr, *, any_sum: bool = False) -> list[Match]:
    """Find all attention, also where something else reads scores or weights, as gradients do.

    Args:
        jaxpr: A jaxpr whose calls were taken apart.
        any_sum: Take also a softmax of 16 bits whose sum is made in 32; what is found is then not
            what the operator computes.
    """
    if not {eqn.primitive.name for eqn in jaxpr.eqns} >= NEEDED:
        return []
    given = dependent(jaxpr.eqns, [*jaxpr.invars, *jaxpr.constvars])
    makers = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    known: dict[Var, Value] = {}
    found: list[Match] = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name != "dot_general":
            value = followed(eqn, known)
            if value is not None:
                known[eqn.outvars[0]] = value
            continue
        match = _matched(eqn, known, makers, given, any_sum=any_sum)
        if match is not None:
            found.append(match)
        labels = tuple(range(len(eqn.outvars[0].aval.shape)))
        known[eqn.outvars[0]] = Value(eqn, PRODUCT, labels)
    return found


def _apart(jaxpr: FlatJaxpr, found: list[Match]) -> list[Match]:
    """Return the matches whose first products nothing else needs."""
    while True:
        replaced = {id(m.last): m for m in found}
        want = set(variables(jaxpr.outvars))
        for eqn in reversed(jaxpr.eqns):
            if any(v in want for v in eqn.outvars):
                match = replaced.get(id(eqn))
                want.update(variables(eqn.invars) if match is None else match.inputs)
        left = [m for m in found if m.first.outvars[0] not in want]
        if len(left) == len(found):
            return found
        found = left


@dataclass(frozen=True, slots=True)
class _Dims:
    """Dims of the scores by label: batch ..., group ..., row, key."""

    batch: tuple[int, ...]
    free: tuple[int, ...]
    key: int

    def place(self, label: int | None) -> int | None:
        """Return the dim of a label."""
        return None if label is None else (*self.batch, *self.free, self.key).index(label)


def _matched(
    last: Eqn,
    known: Mapping[Var, Value],
    makers: Mapping[Var, Eqn],
    given: set[Var],
    *,
    any_sum: bool,
) -> Match | None:
    """Return the attention whose second product an equation is."""
    for side in (0, 1):
        atom = last.invars[side]
        if isinstance(atom, Literal) or atom not in known or last.invars[1 - side] is atom:
            continue
        weights = known[atom]
        softmax = _softmax(weights.node, any_sum=any_sum)
        if softmax is not None:
            return _whole(last, side, weights, *softmax, makers=makers, given=given)
    return None


def _softmax(node: Node, *, any_sum: bool) -> tuple[Node, int] | None:
    """Return the scores and their label if a node is the softmax along it."""
    node = _without_cast(node)
    if str(node[0]) != "div":
        return None
    above, below = node[2]
    below = _without_cast(below) if any_sum else below
    if below[0] != SUM or str(above[0]) != "exp":
        return None
    if (_without_cast(below[2]) if any_sum else below[2]) != above:
        return None
    (shifted,) = above[2]
    if str(shifted[0]) != "sub":
        return None
    scores, largest = shifted[2]
    if largest[0] != MAX or largest[1] != below[1] or largest[2] != scores or reduces(scores):
        return None
    return scores, below[1]


def _without_cast(node: Node) -> Node:
    return node[2][0] if str(node[0]) == "convert_element_type" else node


def _whole(
    last: Eqn,
    side: int,
    weights: Value,
    scores: Node,
    key: int,
    *,
    makers: Mapping[Var, Eqn],
    given: set[Var],
) -> Match | None:
    first = weights.product
    contracted, batched = first.params["dimension_numbers"]
    ranks = [len(v.aval.shape) for v in first.invars]
    num_batch = len(batched[0])
    free = [
        [d for d in range(ranks[i]) if d not in contracted[i] and d not in batched[i]]
        for i in (0, 1)
    ]
    # The dims of a product: batch, free dims of the left, free dims of the right.
    starts = (num_batch, num_batch + len(free[0]))
    of_keys = 1 if key >= starts[1] else 0
    of_rows = 1 - of_keys
    if key < num_batch or len(free[of_keys]) != 1 or not free[of_rows]:
        return None
    if len(contracted[0]) != 1 or any(
        isinstance(v, Literal) for v in (*first.invars, *last.invars)
    ):
        return None
    row_labels = [starts[of_rows] + n for n in range(len(free[of_rows]))]
    sizes = first.outvars[0].aval.shape
    row = max(row_labels, key=lambda x: (sizes[x] == sizes[key], sizes[x]))
    ordered = (*(x for x in row_labels if x != row), row)
    dims = _Dims(tuple(range(num_batch)), ordered, key)
    queries, keys = first.invars[of_rows], first.invars[of_keys]
    row_dims = dict(zip(row_labels, free[of_rows], strict=True))
    of_queries = (*batched[of_rows], *(row_dims[x] for x in ordered), *contracted[of_rows])
    of_key_dims = (*batched[of_keys], *free[of_keys], *contracted[of_keys])
    second = _second(last, side, weights.labels, dims)
    if second is None:
        return None
    of_values, order = second
    values = last.invars[1 - side]
    types = {str(v.aval.dtype) for v in (keys, values)}
    score_type = _dtype_of(scores, first)
    if len(types) != 1 or not all(
        jnp.issubdtype(t, jnp.floating) for t in (*types, queries.aval.dtype, score_type)
    ):
        return None
    writing = _Writing(dims, makers, given)
    steps = writing.written(scores)
    attention = Attention(
        num_batch=num_batch,
        scores=Scores(steps),
        score_dtype=str(first.outvars[0].aval.dtype),
        weight_dtype=str(last.invars[side].aval.dtype),
        result_dtype=str(last.outvars[0].aval.dtype),
        precision=(_precision(first), _precision(last)),
    )
    return Match(
        first=first,
        last=last,
        attention=attention,
        operands=((queries, of_queries), (keys, of_key_dims), (values, of_values)),
        others=tuple(writing.others),
        order=order,
    )


def _precision(eqn: Eqn) -> Any:
    found = eqn.params["precision"]
    # JAX takes a pair for one precision of both factors.
    if isinstance(found, tuple) and len(found) == 2 and found[0] == found[1]:
        return found[0]
    return found


def _dtype_of(scores: Node, first: Eqn) -> Any:
    """Return the dtype of the scores: that of a last cast, or else that of the product."""
    if scores is not PRODUCT and str(scores[0]) == "convert_element_type":
        return dict(scores[1])["new_dtype"]
    return first.outvars[0].aval.dtype


def _second(
    last: Eqn, side: int, labels: Labels, dims: _Dims
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the orders of the dims of values and of the result, as `Match` has them."""
    contracted, batched = last.params["dimension_numbers"]
    other = 1 - side
    if sorted(x for x in labels if x is not None) != sorted((*dims.batch, *dims.free, dims.key)):
        return None
    if None in labels or [labels[d] for d in contracted[side]] != [dims.key]:
        return None
    batch = [labels[d] for d in batched[side]]
    if sorted(x for x in batch if x is not None) != sorted(dims.batch):
        return None
    rank = len(last.invars[other].aval.shape)
    features = [d for d in range(rank) if d not in contracted[other] and d not in batched[other]]
    if len(features) != 1:
        return None
    at = dict(zip(batch, batched[other], strict=True))
    of_values = (*(at[x] for x in dims.batch), *contracted[other], *features)
    rows = [x for x in labels if x not in batch and x != dims.key]
    # The result of the operator is (batch ..., group ..., row, feature).
    feature = len(labels) - 1
    places = [dims.place(x) for x in rows]
    sides = [places, [feature]] if side == 0 else [[feature], places]
    order = [dims.place(x) for x in batch] + sides[0] + sides[1]
    return of_values, tuple(x for x in order if x is not None)


class _Writing:
    """Steps of the scores while they are written; lives only inside `_whole`."""

    def __init__(self, dims: _Dims, makers: Mapping[Var, Eqn], given: set[Var]) -> None:
        self.dims = dims
        self.makers = makers
        self.given = given
        self.others: list[tuple[Var, tuple[int | None, ...]]] = []
        self._steps: list[Any] = []
        self._known: dict[Node, int] = {}

    def written(self, scores: Node) -> tuple[ScoreStep, ...]:
        """Return the steps that make the scores of the product and of `others`."""
        last = self._number(scores)
        count = len(self.others)
        # Numbers: 0 is the product, negative ones stand for others, the rest for steps.

        def final(n: int) -> int:
            return n + count if n > 0 else -n

        steps: list[ScoreStep] = [
            Elementwise(s.primitive, s.params, tuple(map(final, s.inputs)))
            if isinstance(s, Elementwise)
            else s
            for s in self._steps
        ]
        assert last == len(self._steps)
        return tuple(steps)

    def _add(self, step: ScoreStep) -> int:
        self._steps.append(step)
        return len(self._steps)

    def _number(self, node: Node) -> int:
        if node == PRODUCT:
            return 0
        if node not in self._known:
            self._known[node] = self._made(node)
        return self._known[node]

    def _made(self, node: Node) -> int:
        if node[0] == NUMBER:
            return self._add(Number(node[1], node[2]))
        if node[0] == OUTSIDE:
            return self._outside(node[1], node[2])
        if node[0] == POSITIONS:
            return self._add(Positions(node[1], node[2]))
        primitive, params, nodes = node
        inputs = tuple([self._number(x) for x in nodes])
        return self._add(Elementwise(primitive, params, inputs))

    def _outside(self, atom: Var, labels: Labels) -> int:
        """Write what is taken from outside; where it can be made of positions, it is made."""
        inner = self._inner(atom, labels)
        if inner is not None:
            return self._number(inner)
        self.others.append((atom, tuple(self.dims.place(x) for x in labels)))
        return -len(self.others)

    def _inner(self, atom: Var, labels: Labels) -> Node | None:
        """Return the node that makes a value, if it should be made anew; None if it is taken.

        It is made anew where it follows from positions alone, or where it varies along rows and
        keys: what it is made of may not.
        """
        if isinstance(atom, Literal):
            return number(atom)
        eqn = self.makers.get(atom)
        row = self.dims.free[-1]
        if eqn is None or len(eqn.outvars) != 1:
            return None
        if atom in self.given and not {row, self.dims.key} <= set(labels):
            return None
        name, params, shape = eqn.primitive.name, eqn.params, atom.aval.shape
        if name == "iota":
            label = labels[params["dimension"]] if labels else None
            if label == row or label == self.dims.key:
                dim = ROW if label == row else KEY
                return (POSITIONS, dim, str(params["dtype"]))
            return None
        if name in ELEMENTWISE:
            inner: list[Node] = []
            for operand in eqn.invars:
                constant = number(operand)
                own = labels_in(operand.aval.shape, labels) if constant is None else None
                if constant is None and own is None:
                    return None
                inner.append(constant or (OUTSIDE, operand, own))
            return (eqn.primitive, tuple(sorted(params.items())), tuple(inner))
        return self._moved(eqn, name, params, shape, labels)

    def _moved(
        self, eqn: Eqn, name: str, params: Mapping[str, Any], shape: Any, labels: Labels
    ) -> Node | None:
        operand = eqn.invars[0] if len(eqn.invars) == 1 else None
        if operand is None:
            return None
        constant = number(operand)
        before = operand.aval.shape
        if name == "broadcast_in_dim":
            if constant is not None:
                return constant
            at = params["broadcast_dimensions"]
            own = tuple(labels[d] if n > 1 else None for n, d in zip(before, at, strict=True))
        elif name == "transpose":
            places = dict(zip(params["permutation"], labels, strict=True))
            own = tuple(places[k] for k in range(len(labels)))
        elif name in ("reshape", "squeeze"):
            found = reshaped(eqn.outvars[0].aval, before, labels)
            if found is None:
                return None
            own = found
        else:
            return None
        return constant or (OUTSIDE, operand, own)
