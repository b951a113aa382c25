"""Which arrays of a step are stacks of layers, found without running anything.

A heavy `scan` over stacked parameters goes over layers: one of the loss, or one of the step over
arguments that the caller names.  What it reads slice by slice is a stack, and so is what is joined
with a stack element by element: gradients, moments, their updates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshwise.jax_compat.jaxprs import ClosedJaxpr, Eqn, FlatJaxpr, Var, bodies, scan_counts
from meshwise.jax_compat.source_lines import source_line
from meshwise.system.union_find import UnionFind
from meshwise.trace.gradients import LOSS
from meshwise.trace.layers.equations import dependent, inlined, variables
from meshwise.trace.layers.stacks.families import lanes

# A variable and one of its dims.
Place = tuple[Var, int]
_HEAVY = ("dot_general", "conv_general_dilated", "ragged_dot", "ragged_dot_general")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """What is taken apart into layers.

    Attributes:
        scans: Scans over layers, equations of the step and of its losses.
        dims: For each variable that is a stack the dim of the layers.
        losses: The flat jaxpr of each loss, by its equation.
        notes: What was found, for people: scans that are cut and scans that are not.
    """

    scans: frozenset[Eqn]
    dims: Mapping[Var, int]
    losses: Mapping[Eqn, ClosedJaxpr]
    notes: tuple[str, ...]


def has_scans(jaxpr: FlatJaxpr) -> bool:
    """Return whether there is a `scan` anywhere in a jaxpr; each body is looked at once."""
    seen: set[FlatJaxpr] = set()
    todo = [jaxpr]
    while todo:
        for eqn in todo.pop().eqns:
            if eqn.primitive.name == "scan":
                return True
            inner = [b for b in bodies(eqn.params) if b not in seen]
            seen.update(inner)
            todo += inner
    return False


def find_stacks(flat: ClosedJaxpr, batch: Iterable[int], parameters: Iterable[int] = ()) -> Stacks:
    """Look for scans over layers in a step.

    Args:
        flat: Closed jaxpr of the step, calls taken apart.
        batch: Positions of the arguments that are batch data.
        parameters: Positions of the arguments whose scans outside of losses go over layers.
    """
    jaxpr = flat.jaxpr
    rows = dependent(jaxpr.eqns, [jaxpr.invars[i] for i in batch])
    same = _Same()
    same.add(jaxpr.eqns)
    losses: dict[Eqn, ClosedJaxpr] = {}
    found = _Scans()
    found.look(jaxpr.eqns, rows, [jaxpr.invars[i] for i in parameters])
    for eqn in jaxpr.eqns:
        if eqn.primitive.name != LOSS:
            continue
        losses[eqn] = loss = inlined(eqn.params["loss"])
        _join_loss(same, eqn, loss)
        inside = loss.jaxpr
        given = [v for v, o in zip(inside.invars, eqn.invars, strict=True) if o in rows]
        wrt = [inside.invars[w] for w in eqn.params["wrt"]]
        found.look(inside.eqns, dependent(inside.eqns, given), wrt)
    return Stacks(
        scans=frozenset(found.scans),
        dims=same.with_any(found.seeds),
        losses=losses,
        notes=tuple(found.notes),
    )


class _Scans:
    """Scans over layers, as they are found.

    Attributes:
        scans: The scans.
        seeds: What they read and make slice by slice.
        notes: For people.
    """

    def __init__(self) -> None:
        self.scans: set[Eqn] = set()
        self.seeds: list[Place] = []
        self.notes: list[str] = []

    def look(self, equations: Sequence[Eqn], moving: Collection[Var], wrt: Iterable[Var]) -> None:
        """Look through the equations of a step or a loss.

        Args:
            equations: The equations.
            moving: What depends on batch data.
            wrt: The parameters.
        """
        varied = dependent(equations, wrt)
        for eqn in equations:
            name = eqn.primitive.name
            stacked = [v for v in _sliced(eqn) if v not in moving]
            if stacked and not varied.isdisjoint(stacked) and _is_heavy(eqn):
                self.scans.add(eqn)
                where = source_line(eqn.source_info)
                self.notes.append(f"{eqn.params['length']} layers scanned at {where} are cut apart")
                self.seeds += [(v, 0) for v in stacked]
                self.seeds += [(v, 0) for v in eqn.outvars[scan_counts(eqn.params)[1] :]]
            elif name not in ("scan", LOSS) and not varied.isdisjoint(variables(eqn.invars)):
                self.notes += (
                    f"the scan at {source_line(e.source_info)} stays whole: it is inside of "
                    f"{name} at {source_line(eqn.source_info)}"
                    for e in _scans_inside(eqn)
                    if _is_heavy(e)
                )


def _sliced(eqn: Eqn) -> list[Var]:
    """Return what a `scan` takes slice by slice; nothing of other equations."""
    if eqn.primitive.name != "scan" or eqn.params["length"] < 2:
        return []
    return variables(eqn.invars[sum(scan_counts(eqn.params)) :])


def _is_heavy(eqn: Eqn) -> bool:
    return eqn.primitive.name in _HEAVY or any(
        _is_heavy(e) for body in bodies(eqn.params) for e in body.eqns
    )


def _scans_inside(eqn: Eqn) -> Iterator[Eqn]:
    for body in bodies(eqn.params):
        for e in body.eqns:
            if e.primitive.name == "scan":
                yield e
            yield from _scans_inside(e)


def _join_loss(same: _Same, eqn: Eqn, loss: ClosedJaxpr) -> None:
    """What enters and leaves a loss is the same inside and outside."""
    inside = loss.jaxpr
    same.add(inside.eqns)
    wrt = [inside.invars[w] for w in eqn.params["wrt"]]
    pairs = [
        *zip(eqn.invars, inside.invars, strict=True),
        *zip(eqn.outvars, [*inside.outvars, *wrt], strict=True),
    ]
    for one, two in pairs:
        for dim in range(len(one.aval.shape)):
            same.join([(one, dim), (two, dim)])


class _Same:
    """Dims of variables that go together."""

    def __init__(self) -> None:
        self._sets: UnionFind[Place] = UnionFind()

    def add(self, equations: Sequence[Eqn]) -> None:
        """Join what each equation treats slice by slice."""
        for eqn in equations:
            for lane in lanes(eqn):
                places = zip(eqn.invars, lane.operands, strict=True)
                both = [(v, d) for v, d in places if d is not None]
                if lane.result is not None:
                    both.append((eqn.outvars[0], lane.result))
                self.join(both)

    def join(self, places: Sequence[Place]) -> None:
        """Say that places go together."""
        known = [p for p in places if variables([p[0]])]
        for place in known[1:]:
            self._sets.join(known[0], place)

    def with_any(self, seeds: Sequence[Place]) -> dict[Var, int]:
        """Return all variables of which a dim goes with one of the seeds; their first such dim."""
        wanted = {self._sets.find(seed) for seed in seeds}
        found: dict[Var, int] = {}
        for variable, dim in list(self._sets.parent):
            if self._sets.find((variable, dim)) in wanted:
                found[variable] = min(dim, found.get(variable, dim))
        return found
