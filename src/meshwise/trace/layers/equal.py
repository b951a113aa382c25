"""Whether two layers are the same work: equal equations, wired equally, in equal roles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from types import FunctionType
from typing import cast

from jax.extend.core import ClosedJaxpr, Jaxpr

from meshwise.jax_compat.jaxprs import Eqn, FlatJaxpr, Literal, Var
from meshwise.trace.layers.cut import Cutter, Piece
from meshwise.trace.layers.equations import variables
from meshwise.trace.layers.streams import SLICE, stream_equations
from meshwise.trace.layers.update import Share, Update

# Names for display; functions, whose text holds an address: the bodies beside them say the rest.
_DISPLAY = ("name", "debug_info", "ctx_mesh", "resource_env")
# Where a slice of keys starts; its shape is that of its result.
_START = ("start_indices", "limit_indices")


class _Writer:
    """Numbers variables as they appear, and streams of random numbers."""

    def __init__(self) -> None:
        self.numbers: dict[Var, int] = {}
        self.rows: list[object] = []
        self.streams: dict[object, int] = {}
        self.literals: set[object] = set()

    def atom(self, v: Var) -> object:
        if isinstance(v, Literal):
            said = (str(v.aval), str(v.val))
            self.literals.add(said)
            return said
        return self.numbers.setdefault(v, len(self.numbers))

    def stream(self, said: object) -> object:
        return "stream", self.streams.setdefault(said, len(self.streams))

    def role(self, kind: str, v: Var, *details: object) -> None:
        self.rows.append((kind, self.atom(v), v.aval.str_short(), *details))

    def equations(
        self, equations: Sequence[Eqn], given: Iterable[Var], results: Iterable[Var]
    ) -> None:
        known = set(given)
        streams = stream_equations(equations, known, results)
        for eqn in equations:
            is_stream = eqn in streams
            params = [
                (key, self.parameter(value, eqn, known))
                for key, value in eqn.params.items()
                if key not in _DISPLAY
                and not isinstance(value, FunctionType | partial)
                and not (is_stream and key in _START)
            ]
            if is_stream and eqn.primitive.name == SLICE:
                params.append(("start", self.stream(tuple(str(eqn.params[k]) for k in _START))))
            ins = tuple(
                (str(v.aval), self.stream((str(v.aval), str(v.val))))
                if is_stream and isinstance(v, Literal)
                else self.atom(v)
                for v in eqn.invars
            )
            outs = tuple((self.atom(v), v.aval.str_short()) for v in eqn.outvars)
            self.rows.append((eqn.primitive.name, tuple(params), ins, outs))
            if not known.isdisjoint(variables(eqn.invars)):
                known.update(eqn.outvars)

    def parameter(self, value: object, eqn: Eqn, known: set[Var]) -> object:
        """Return a body as its equations, anything else as text."""
        if isinstance(value, tuple | list) and any(
            isinstance(v, ClosedJaxpr | Jaxpr) for v in value
        ):
            return tuple(self.parameter(v, eqn, known) for v in value)
        if not isinstance(value, ClosedJaxpr | Jaxpr):
            return str(value)
        # JAX 0.11 has one type for both.
        body = cast(FlatJaxpr, value.jaxpr if isinstance(value, ClosedJaxpr) else value)
        outer = self.numbers, self.rows
        self.numbers, self.rows = {}, []
        for v in (*body.constvars, *body.invars):
            self.role("takes", v)
        # Where operands are passed on one by one, what is given is known.
        pairs = zip(body.invars, eqn.invars, strict=False)
        is_each = len(body.invars) == len(eqn.invars)
        given = [v for v, o in pairs if is_each and variables([o]) and o in known]
        self.equations(body.eqns, given, body.outvars)
        self.rows.append(("gives", *map(self.atom, body.outvars)))
        inside = tuple(self.rows)
        self.numbers, self.rows = outer
        return inside

    def done(self) -> tuple[object, ...]:
        """Return all rows; a stream that is an ordinary constant too is one value of the graph."""
        shared = sorted(n for said, n in self.streams.items() if said in self.literals)
        return *self.rows, ("shared", *shared)


def signature(cutter: Cutter, piece: Piece, update: Update, share: Share) -> tuple[object, ...]:
    """Return what equal layers share; two layers of one signature have equal graphs to plan.

    Args:
        cutter: Cuts the step.
        piece: The layer.
        update: The update of the step.
        share: What the layer does of it.
    """
    split = cutter.split
    invars = split.forward.jaxpr.invars
    writer = _Writer()
    for i in piece.arguments:
        writer.role("argument", invars[i], split.batch_dims.get(i, -1))
    for r in piece.roots:
        writer.role("root", split.roots[r], r in share.owned, r in share.tied)
    for v in piece.entering:
        writer.role("enters", v, cutter.has_cotangent(v))
    roots = [split.roots[r] for r in piece.roots]
    given = [*(invars[i] for i in piece.arguments), *variables(roots), *piece.entering]
    writer.equations(piece.preparation, invars, roots)
    writer.equations(piece.equations, given, piece.leaving)
    # All rows of what the loss returns are collected, beside those that go on.
    returned = set(variables(split.forward.jaxpr.outvars[: 1 + split.num_aux]))
    for v in piece.leaving:
        is_read = cutter.is_read_after(v, piece.last)
        writer.role("leaves", v, is_read, cutter.has_cotangent(v), v in returned)
    later = split.update.jaxpr
    for i in share.arguments:
        writer.role("state", later.invars[i])
    for r in piece.roots:
        if r in share.owned:
            writer.role("gradient", update.gradients[r])
    sends = [v for phase in share.sends for v in phase]
    writer.equations(
        share.equations, later.invars, [*(later.outvars[j] for j in share.results), *sends]
    )
    for j in share.results:
        writer.rows.append(("result", writer.atom(later.outvars[j])))
    return writer.done()
