"""Attention that a step writes out: its scores are values of the step, and lie in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp

from meshwise.jax_compat.jaxprs import FlatJaxpr, bodies, closed_bodies
from meshwise.jax_compat.source_lines import source_line
from meshwise.trace.attention.match import NEEDED, Match, all_attention
from meshwise.trace.gradients import LOSS
from meshwise.trace.layers.equations import dependent, inlined, needed, variables

_KERNEL = "pallas_call"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenAttention:
    """One attention of a step.

    Attributes:
        where: Source line of its first product.
        lines: Source lines of what is between its two products, and of the first.
        shape: Shape of the scores, for the whole batch.
        rows_and_keys: The sizes of its dims of rows and of keys.
        has_batch: Whether queries and keys have a dim in common, as sequences or heads.  Without,
            the keys are the same for all rows, as the classes of a softmax.
        has_others: Whether scores are changed by more than numbers and positions, as by a bias.
        dtype: Type of what the first product gives.
        query_dtype: Type of the queries.
        features: Features of queries and of values.
        functions: Names of the primitives that change scores before the softmax.
    """

    where: str
    lines: frozenset[str]
    shape: tuple[int, ...]
    rows_and_keys: tuple[int, int]
    has_batch: bool
    has_others: bool
    dtype: str
    query_dtype: str
    features: tuple[int, int]
    functions: frozenset[str]

    @property
    def num_elements(self) -> int:
        """Number of scores of the whole batch."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of the scores of the whole batch."""
        return self.num_elements * jnp.dtype(self.dtype).itemsize


def written_attention(jaxpr: FlatJaxpr) -> Iterator[WrittenAttention]:
    """Yield the attention of a step, that in loops and in what is differentiated included.

    Equal scores of one source line, as of equal layers, come once.

    Args:
        jaxpr: The step; its calls were taken apart.
    """
    seen: set[tuple[str, str]] = set()
    for found in _every(jaxpr, any_sum=True):
        match = found.match
        scores = source_line(match.first.source_info), str(match.first.outvars[0].aval)
        if scores not in seen:
            seen.add(scores)
            yield _described(match, found.jaxpr)


def num_scores(jaxpr: FlatJaxpr, least_keys: int) -> int:
    """Return how many scores the forward pass of a step writes out, of rows with so many keys.

    Attention whose sums are made in another type than its scores is left out: it cannot be the
    operator.

    Args:
        jaxpr: The step, or its forward pass; its calls were taken apart.
        least_keys: Rows with fewer keys are left out.
    """
    return sum(
        found.times * math.prod(found.match.first.outvars[0].aval.shape)
        for found in _every(jaxpr, any_sum=False)
        if found.match.num_keys >= least_keys
    )


class _Found(NamedTuple):
    """One attention, the jaxpr in which it stands, and how often that one runs."""

    match: Match
    jaxpr: FlatJaxpr
    times: int


def _every(jaxpr: FlatJaxpr, *, any_sum: bool, times: int = 1) -> Iterator[_Found]:
    """Yield all attention of a jaxpr and of those in it, as `all_attention` does."""
    for match in all_attention(jaxpr, any_sum=any_sum):
        yield _Found(match, jaxpr, times)
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == LOSS:  # It has its loss twice.
            found = [eqn.params["loss"]]
        elif eqn.primitive.name == _KERNEL:  # Its scores are in no memory of the step.
            continue
        else:
            found = closed_bodies(eqn.params)
        trips = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        for body in found:
            if set(primitive_names(body.jaxpr)) >= NEEDED:
                yield from _every(inlined(body).jaxpr, any_sum=any_sum, times=times * trips)


def primitive_names(jaxpr: FlatJaxpr) -> Iterator[str]:
    """Yield the names of all primitives of a jaxpr and of the bodies in it.

    Args:
        jaxpr: The jaxpr.
    """
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for body in bodies(eqn.params):
            yield from primitive_names(body)


def _described(match: Match, jaxpr: FlatJaxpr) -> WrittenAttention:
    scores = match.first.outvars[0]
    after = dependent(jaxpr.eqns, [scores])
    between = [
        eqn
        for eqn in needed(jaxpr.eqns, variables(match.last.invars))
        if any(v in after for v in eqn.outvars)
    ]
    # Queries are (batch ..., group ..., row, feature), keys and values (batch ..., key, feature).
    shapes = [[v.aval.shape[d] for d in order] for v, order in match.operands]
    (*_, rows, features), _, (*_, of_values) = shapes
    return WrittenAttention(
        where=source_line(match.first.source_info),
        lines=frozenset(source_line(eqn.source_info) for eqn in between),
        shape=tuple(scores.aval.shape),
        rows_and_keys=(rows, match.num_keys),
        has_batch=match.attention.num_batch > 0,
        has_others=bool(match.others),
        dtype=str(scores.aval.dtype),
        query_dtype=str(match.operands[0][0].aval.dtype),
        features=(features, of_values),
        functions=match.attention.scores.primitives,
    )
