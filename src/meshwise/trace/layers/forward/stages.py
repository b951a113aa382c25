"""A step without gradients, cut along the stages on which its arguments live.

An equation runs on the last of the stages that its operands come from, or a later one where fewer
bytes cross then (`forward_cuts`), so values only go forward.
What depends on no argument with a stage (masks, positions, labels) each stage makes for itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
from jax import Array

from meshwise.jax_compat.jaxprs import ClosedJaxpr, Eqn, FlatJaxpr, Var
from meshwise.jax_compat.jaxprs import Literal as Constant
from meshwise.system.identity import Same
from meshwise.trace.layers.equations import dependent, needed, read, run, traced, variables
from meshwise.trace.layers.forward.cuts import cheapest_places


class Source(NamedTuple):
    """What a stage takes or a step returns: an argument of the step, or a value that a stage made.

    Attributes:
        kind: Which of the two.
        number: The position of the flat argument, or the number of the value in the order of the
            stages.
    """

    kind: Literal["argument", "value"]
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardStage:
    """What one stage computes.

    Attributes:
        stage: Its number in the pipeline that is followed.
        closed: FlatJaxpr of its operands.
        inputs: The operands.
        outputs: Numbers of the values that it makes.
    """

    stage: int
    closed: ClosedJaxpr
    inputs: tuple[Source, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardStages:
    """A step in stages.

    Attributes:
        stages: In the order in which they run; stages that compute nothing are left out.
        results: The flat results of the step.
        sent: Arguments that are sent from where they live, or what follows from them without batch
            data is; each with a stage that reads it.
    """

    stages: tuple[ForwardStage, ...]
    results: tuple[Source, ...]
    sent: tuple[tuple[int, int], ...]


def forward_stages(
    closed: ClosedJaxpr, homes: Sequence[int | None], rows: Collection[int] = ()
) -> ForwardStages:
    """Cut a step.

    Args:
        closed: Its jaxpr, calls taken apart (`equations.inlined`).
        homes: For each argument the stage on which it lives; None where it may be anywhere.  At
            least one has a stage.
        rows: Arguments that are batch data.

    Returns:
        The stages.
    """
    placed = _placed(closed.jaxpr, homes, rows)
    maker = _StageMaker(closed, placed)
    stages = tuple(maker.stages())
    return ForwardStages(
        stages=stages,
        results=tuple(map(maker.source, closed.jaxpr.outvars)),
        sent=_sent(closed.jaxpr, homes, placed.moving, maker.reads),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """Where the equations of a step run.

    Attributes:
        places: For each equation its stage; None where each stage that needs it runs it.
        stage_of: For each variable that lives or is made on one stage this stage.
        moving: Variables that follow from batch data.
    """

    places: Sequence[int | None]
    stage_of: Mapping[Var, int]
    moving: Collection[Var]


def _placed(jaxpr: FlatJaxpr, homes: Sequence[int | None], rows: Collection[int]) -> _Placed:
    """Choose where the equations of a step run; the arguments are as for `forward_stages`."""
    stage_of: dict[Var, int] = {
        v: home for v, home in zip(jaxpr.invars, homes, strict=True) if home is not None
    }
    places: list[int | None] = []
    for eqn in jaxpr.eqns:
        place = max((stage_of[v] for v in variables(eqn.invars) if v in stage_of), default=None)
        places.append(place)
        if place is not None:
            stage_of.update((v, place) for v in eqn.outvars)
    moving = dependent(jaxpr.eqns, [jaxpr.invars[n] for n in rows])
    fixed = {
        i
        for i, eqn in enumerate(jaxpr.eqns)
        if any(v in stage_of and v not in moving for v in variables(eqn.invars))
    }
    places = cheapest_places(jaxpr.eqns, places, fixed)
    for eqn, place in zip(jaxpr.eqns, places, strict=True):
        if place is not None:
            stage_of.update((v, place) for v in eqn.outvars)
    return _Placed(places=places, stage_of=stage_of, moving=moving)


class _StageMaker:
    """Makes the stages of a step, in order; numbers the values that they make.

    Attributes:
        reads: Each stage with the variables that it takes.
    """

    def __init__(self, closed: ClosedJaxpr, placed: _Placed) -> None:
        self.jaxpr, self.placed = closed.jaxpr, placed
        self.known = dict(zip(self.jaxpr.constvars, closed.consts, strict=True))
        self.argument = {v: n for n, v in enumerate(self.jaxpr.invars)}
        self.first = min(placed.stage_of.values())
        self.made = _handed_on(self.jaxpr, placed, self.argument)
        # Constants that the step returns have no identity but their own: they are literals.
        self.numbers: dict[object, int] = {}
        self.reads: list[tuple[int, list[Var]]] = []

    def source(self, atom: Var) -> Source:
        """Return where a variable or constant comes from."""
        if not isinstance(atom, Constant) and atom in self.argument:
            return Source("argument", self.argument[atom])
        return Source("value", self.numbers[_key(atom)])

    def stages(self) -> Iterator[ForwardStage]:
        """Yield the stages that compute anything."""
        numbers = sorted({self.first, *(p for p in self.placed.places if p is not None)})
        for stage in numbers:
            atoms: list[Var] = [
                v for v in self.made if self.placed.stage_of.get(v, self.first) == stage
            ]
            if stage == self.first:
                # Constants that the step returns: the first stage returns them.
                returned: list[Var] = self.jaxpr.outvars
                atoms += [v for v in returned if isinstance(v, Constant)]
            if atoms:
                yield self._stage(stage, atoms)

    def _stage(self, stage: int, atoms: Sequence[Var]) -> ForwardStage:
        """Make the stage that makes some variables and constants."""
        pairs = zip(self.jaxpr.eqns, self.placed.places, strict=True)
        equations = needed([e for e, p in pairs if p in (stage, None)], variables(atoms))
        inside = {v for e in equations for v in e.outvars}
        read = variables([*(v for e in equations for v in e.invars), *atoms])
        taken = dict.fromkeys(v for v in read if v not in inside and v not in self.known)
        operands = list(taken)
        self.reads.append((stage, operands))
        outputs: list[int] = []
        for atom in atoms:
            outputs.append(len(self.numbers))
            self.numbers[_key(atom)] = outputs[-1]
        return ForwardStage(
            stage=stage,
            closed=_closed(equations, self.known, operands, atoms),
            inputs=tuple(map(self.source, operands)),
            outputs=tuple(outputs),
        )


def _key(atom: Var) -> object:
    return Same(atom) if isinstance(atom, Constant) else atom


def _sent(
    jaxpr: FlatJaxpr,
    homes: Sequence[int | None],
    moving: Collection[Var],
    reads: Sequence[tuple[int, Sequence[Var]]],
) -> tuple[tuple[int, int], ...]:
    """`ForwardStages.sent`, from what each stage reads."""
    roots: dict[Var, frozenset[int]] = {
        v: frozenset((n,)) for n, v in enumerate(jaxpr.invars) if homes[n] is not None
    }
    for eqn in jaxpr.eqns:
        if not all(v in moving for v in eqn.outvars):
            found = frozenset[int]().union(*(roots.get(v, ()) for v in variables(eqn.invars)))
            roots.update((v, found) for v in eqn.outvars)
    pairs = {
        (n, stage)
        for stage, operands in reads
        for v in operands
        if v not in moving
        for n in roots.get(v, ())
        if homes[n] != stage
    }
    return tuple(sorted(pairs))


def _handed_on(jaxpr: FlatJaxpr, placed: _Placed, argument: Mapping[Var, int]) -> list[Var]:
    """Return the variables that later stages read or the step returns, in order of their making."""
    wanted = {v for v in variables(jaxpr.outvars) if v not in argument}
    for eqn, place in zip(jaxpr.eqns, placed.places, strict=True):
        if place is not None:
            wanted.update(
                v
                for v in variables(eqn.invars)
                if v not in argument and placed.stage_of.get(v, place) != place
            )
    constants = set(jaxpr.constvars)
    order = [*jaxpr.constvars, *(v for eqn in jaxpr.eqns for v in eqn.outvars)]
    return [v for v in order if v in wanted and (v not in constants or v in jaxpr.outvars)]


def _closed(
    equations: Sequence[Eqn],
    known: Mapping[Var, Array],
    operands: Sequence[Var],
    atoms: Sequence[Var],
) -> ClosedJaxpr:
    def stage(*values: Array) -> list[Array]:
        there = {**known, **dict(zip(operands, values, strict=True))}
        run(equations, there)
        return [read(there, v) for v in atoms]

    return traced(stage, [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in operands])
