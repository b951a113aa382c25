"""How an operator with bodies (`scan`, `cond`, `while`) is bound to them.

Operands and results of the operator are *slots*; each body takes some operands and makes some
results.  A slot has one layout for all bodies, so that planning, checking and lowering treat the
three kinds alike.

What a step runs of them is known before it runs only for loops with a trip count.  A `cond` runs
one branch; every branch is counted once, in cost, collectives and FLOP, so that a plan names all
that may run.  A `while` whose trip count is unknown counts as one trip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

SCAN, COND, WHILE = "scan", "cond", "while"

# In place of a result: the predicate of a `while`, equal on every device.
PREDICATE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyPart:
    """One body.

    Attributes:
        operands: For each input of the body the operand of the operator that enters there.
        results: For each output of the body the result of the operator that it becomes.
        trips: How often the body runs while the operator runs once.
    """

    operands: tuple[int, ...]
    results: tuple[int, ...]
    trips: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """How an operator is bound to its bodies.

    Attributes:
        kind: `scan`, `cond` or `while`.
        parts: The bodies: one of a scan; the branches of a cond; predicate and body of a while.
        carries: Pairs (operand, result): what an iteration leaves is what the next one takes, so
            both have one layout.
        stacked_operands: Operands of which each iteration takes one slice along dim 0.
        stacked_results: Results of which each iteration makes one slice along dim 0.
        whole_operands: Operands that are equal on every device: the number of the branch.
        length: Trips of a loop; 1 where they are unknown.
        reverse: Whether a scan takes its slices from the last to the first.
        is_counted: Whether the number of trips is known.
    """

    kind: str
    parts: tuple[BodyPart, ...]
    carries: tuple[tuple[int, int], ...] = ()
    stacked_operands: frozenset[int] = frozenset()
    stacked_results: frozenset[int] = frozenset()
    whole_operands: frozenset[int] = frozenset()
    length: int = 1
    reverse: bool = False
    is_counted: bool = True

    def carried_result(self, operand: int) -> int | None:
        """The result that an operand becomes; None if it is no carry."""
        return next((j for k, j in self.carries if k == operand), None)

    def carry_of(self, result: int) -> int | None:
        """The operand in whose place a result stands; None if it is no carry."""
        return next((k for k, j in self.carries if j == result), None)

    def carry_inputs(self, part: int) -> tuple[int, ...]:
        """Inputs of a body that are carries which the same body returns."""
        made = set(self.parts[part].results)
        carried = {k for k, j in self.carries if j in made}
        return tuple(n for n, k in enumerate(self.parts[part].operands) if k in carried)

    def makers(self, result: int) -> tuple[tuple[int, int], ...]:
        """Pairs (part, output of its body) that make a result."""
        return tuple(
            (p, n)
            for p, part in enumerate(self.parts)
            for n, j in enumerate(part.results)
            if j == result
        )

    def takers(self, operand: int) -> tuple[tuple[int, int], ...]:
        """Pairs (part, input of its body) that take an operand."""
        return tuple(
            (p, n)
            for p, part in enumerate(self.parts)
            for n, k in enumerate(part.operands)
            if k == operand
        )

    def keeping(self, kept: Sequence[int]) -> Structure:
        """The structure when only these operands stay (all carries among them), renumbered."""
        number = {k: position for position, k in enumerate(kept)}

        def left(operands: Sequence[int]) -> tuple[int, ...]:
            return tuple(number[k] for k in operands if k in number)

        return replace(
            self,
            parts=tuple(replace(part, operands=left(part.operands)) for part in self.parts),
            carries=tuple((number[k], j) for k, j in self.carries),
            stacked_operands=frozenset(left(sorted(self.stacked_operands))),
            whole_operands=frozenset(left(sorted(self.whole_operands))),
        )


def scan_structure(
    *,
    num_operands: int,
    num_results: int,
    num_consts: int,
    num_carry: int,
    length: int,
    reverse: bool = False,
) -> Structure:
    """Return the structure of a `scan`: operands are constants, carries, xs; results carries, ys.

    Args:
        num_operands: Number of operands.
        num_results: Number of results.
        num_consts: Operands that are constants.
        num_carry: Operands that are carries.
        length: Number of trips.
        reverse: Whether slices are taken from the last to the first.
    """
    return Structure(
        kind=SCAN,
        parts=(
            BodyPart(
                operands=tuple(range(num_operands)), results=tuple(range(num_results)), trips=length
            ),
        ),
        carries=tuple((num_consts + j, j) for j in range(num_carry)),
        stacked_operands=frozenset(range(num_consts + num_carry, num_operands)),
        stacked_results=frozenset(range(num_carry, num_results)),
        length=length,
        reverse=reverse,
    )


def cond_structure(*, num_operands: int, num_results: int, num_branches: int) -> Structure:
    """Return the structure of a `cond` or `switch`; operand 0 is the number of the branch.

    Args:
        num_operands: Number of operands.
        num_results: Number of results.
        num_branches: Number of branches.
    """
    branch = BodyPart(
        operands=tuple(range(1, num_operands)), results=tuple(range(num_results)), trips=1
    )
    return Structure(kind=COND, parts=(branch,) * num_branches, whole_operands=frozenset((0,)))


def while_structure(
    *, num_predicate_consts: int, num_body_consts: int, num_carry: int, trips: int | None
) -> Structure:
    """Return the structure of a `while`.

    The predicate runs once more than the body.

    Args:
        num_predicate_consts: Operands that are constants of the predicate; they come first.
        num_body_consts: Operands that are constants of the body; they come next.
        num_carry: Operands that are carries.
        trips: Number of trips; None where it is not known.
    """
    first = num_predicate_consts + num_body_consts
    carries = tuple(range(first, first + num_carry))
    length = 1 if trips is None else trips
    return Structure(
        kind=WHILE,
        parts=(
            BodyPart(
                operands=(*range(num_predicate_consts), *carries),
                results=(PREDICATE,),
                trips=length + 1,
            ),
            BodyPart(
                operands=(*range(num_predicate_consts, first), *carries),
                results=tuple(range(num_carry)),
                trips=length,
            ),
        ),
        carries=tuple((k, j) for j, k in enumerate(carries)),
        length=length,
        is_counted=trips is not None,
    )
