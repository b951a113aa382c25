"""Whether two layers are the same work: equal equations, wired equally, in equal roles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import FunctionType
from typing import Any

from meshwise.jax_compat import Literal
from meshwise.trace.layers.cut import Cutter, Piece
from meshwise.trace.layers.update import Share, Update

# Names for display; functions, whose text holds an address: the bodies beside them say the rest.
_DISPLAY = ("name", "debug_info", "ctx_mesh", "resource_env")


class _Writer:
    """Numbers variables as they appear."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        self.rows: list[object] = []

    def atom(self, v: Any) -> object:
        if isinstance(v, Literal):
            return (str(v.aval), str(v.val))
        return self.numbers.setdefault(v, len(self.numbers))

    def role(self, kind: str, v: Any, *details: object) -> None:
        self.rows.append((kind, self.atom(v), v.aval.str_short(), *details))

    def equations(self, equations: Sequence[Any]) -> None:
        for eqn in equations:
            params = tuple(
                (key, str(value))
                for key, value in eqn.params.items()
                if key not in _DISPLAY and not isinstance(value, FunctionType | partial)
            )
            ins = tuple(self.atom(v) for v in eqn.invars)
            outs = tuple((self.atom(v), v.aval.str_short()) for v in eqn.outvars)
            self.rows.append((eqn.primitive.name, params, ins, outs))


def signature(cutter: Cutter, piece: Piece, update: Update, share: Share) -> tuple[object, ...]:
    """What equal layers share; two layers of one signature have equal graphs to plan.

    Args:
        cutter: Of the step.
        piece: The layer.
        update: Of the step.
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
        writer.role("enters", v)
    writer.equations(piece.preparation)
    writer.equations(piece.equations)
    for v in piece.leaving:
        writer.role("leaves", v, cutter.is_read_after(v, piece.last))
    later = split.update.jaxpr
    for i in share.arguments:
        writer.role("state", later.invars[i])
    for r in piece.roots:
        if r in share.owned:
            writer.role("gradient", update.gradients[r])
    writer.equations(share.equations)
    for j in share.results:
        writer.rows.append(("result", writer.atom(later.outvars[j])))
    return tuple(writer.rows)
