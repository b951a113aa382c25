"""A step without gradients, cut along the stages on which its arguments live.

An equation runs on the last of the stages that its operands come from, or a later one where fewer
bytes cross then (`forward_cuts`), so values only go forward.
What depends on no argument with a stage (masks, positions, labels) each stage makes for itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax

from meshwise.jax_compat import Literal as Constant
from meshwise.trace.layers.equations import dependent, needed, read, run, traced, variables
from meshwise.trace.layers.forward.cuts import cheapest_places


class Source(NamedTuple):
    """What a stage takes or a step returns: an argument of the step, or a value that a stage made.

    Attributes:
        kind: Which of the two.
        number: Of the flat argument, or of the value in the order of the stages.
    """

    kind: Literal["argument", "value"]
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardStage:
    """What one stage computes.

    Attributes:
        stage: Its number in the pipeline that is followed.
        closed: Jaxpr of its operands.
        inputs: The operands.
        outputs: Numbers of the values that it makes.
    """

    stage: int
    closed: Any
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
    closed: Any, homes: Sequence[int | None], rows: Collection[int] = ()
) -> ForwardStages:
    """Cut a step.

    Args:
        closed: Its jaxpr, calls taken apart (`equations.inlined`).
        homes: For each argument the stage on which it lives; None where it may be anywhere.  At
            least one has a stage.
        rows: Arguments that are batch data.
    """
    jaxpr = closed.jaxpr
    argument = {v: n for n, v in enumerate(jaxpr.invars)}
    stage_of: dict[Any, int] = {
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
    first = min(stage_of.values())
    made = _handed_on(jaxpr, places, stage_of, argument)
    numbers: dict[Any, int] = {}
    stages: list[ForwardStage] = []
    reads: list[tuple[int, list[Any]]] = []
    # Constants that the step returns: the first stage returns them.
    constants = [v for v in jaxpr.outvars if isinstance(v, Constant)]
    constant_numbers: dict[int, int] = {}
    known = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    for stage in sorted({first, *(p for p in places if p is not None)}):
        atoms: list[Any] = [v for v in made if stage_of.get(v, first) == stage]
        if stage == first:
            atoms += constants
        if not atoms:
            continue
        there = [e for e, p in zip(jaxpr.eqns, places, strict=True) if p in (stage, None)]
        equations = needed(there, variables(atoms))
        inside = {v for e in equations for v in e.outvars}
        taken = dict.fromkeys(
            v
            for v in variables([*(v for e in equations for v in e.invars), *atoms])
            if v not in inside and v not in known
        )
        operands = list(taken)
        reads.append((stage, operands))
        outputs: list[int] = []
        for atom in atoms:
            number = len(numbers) + len(constant_numbers)
            outputs.append(number)
            if isinstance(atom, Constant):
                constant_numbers[id(atom)] = number
            else:
                numbers[atom] = number
        stages.append(
            ForwardStage(
                stage=stage,
                closed=_closed(equations, known, operands, atoms),
                inputs=tuple(
                    Source("argument", argument[v])
                    if v in argument
                    else Source("value", numbers[v])
                    for v in operands
                ),
                outputs=tuple(outputs),
            )
        )
    results = tuple(
        Source("value", constant_numbers[id(v)])
        if isinstance(v, Constant)
        else Source("argument", argument[v])
        if v in argument
        else Source("value", numbers[v])
        for v in jaxpr.outvars
    )
    return ForwardStages(
        stages=tuple(stages), results=results, sent=_sent(jaxpr, homes, moving, reads)
    )


def _sent(
    jaxpr: Any,
    homes: Sequence[int | None],
    moving: Collection[Any],
    reads: Sequence[tuple[int, Sequence[Any]]],
) -> tuple[tuple[int, int], ...]:
    """`ForwardStages.sent`, from what each stage reads."""
    roots: dict[Any, frozenset[int]] = {
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


def _handed_on(
    jaxpr: Any,
    places: Sequence[int | None],
    stage_of: Mapping[Any, int],
    argument: Mapping[Any, int],
) -> list[Any]:
    """Variables that later stages read or the step returns, in the order in which they are made."""
    wanted = {v for v in variables(jaxpr.outvars) if v not in argument}
    for eqn, place in zip(jaxpr.eqns, places, strict=True):
        if place is not None:
            wanted.update(
                v
                for v in variables(eqn.invars)
                if v not in argument and stage_of.get(v, place) != place
            )
    constants = set(jaxpr.constvars)
    order = [*jaxpr.constvars, *(v for eqn in jaxpr.eqns for v in eqn.outvars)]
    return [v for v in order if v in wanted and (v not in constants or v in jaxpr.outvars)]


def _closed(
    equations: Sequence[Any],
    known: Mapping[Any, Any],
    operands: Sequence[Any],
    atoms: Sequence[Any],
) -> Any:
    def stage(*values: Any) -> list[Any]:
        there = {**known, **dict(zip(operands, values, strict=True))}
        run(equations, there)
        return [read(there, v) for v in atoms]

    return traced(stage, [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in operands])
