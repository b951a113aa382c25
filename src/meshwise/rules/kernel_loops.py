"""The loops of an opaque kernel as its author states them: `"bhqd,bhkd,bhkd->bhqd"`.

A letter is a loop: every dim of that letter is cut in the same place.  The rule is checked against
the statement alone; that the kernel works on a part as on the whole is its author's promise.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from meshwise.errors import TraceError
from meshwise.graph.layout import SUM
from meshwise.graph.loops import PARALLEL, LoopRule
from meshwise.rules.loop_list import LoopList
from meshwise.units import counted

_REDUCED = (SUM, "max", "min")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLoops:
    """What a kernel says of its loops.

    Attributes:
        loops: Dims of operands and results, a letter a loop: `"bqd,bkd,bkd->bqd"`; no letter is
            a scalar.  Spaces do not count.
        whole: Letters of loops that must not be split.
        sum: Letters of loops over which the results are sums: each part gives a term.
        max: The same for maxima.
        min: The same for minima.
        flop: FLOP of the whole kernel as a function of its operands (arrays or their shapes and
            dtypes); None counts one for each element of the results.
        local: For a primitive whose parameters name sizes: the primitive on local operands, as
            `local(params, *operands)`.  None binds it with the same parameters.

    Raises:
        TraceError: the statement contradicts itself.
    """

    loops: str
    whole: str = ""
    sum: str = ""
    max: str = ""
    min: str = ""
    flop: Callable[..., float] | None = None
    local: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        """Check what can be checked without shapes."""
        check_statement(self)

    def __str__(self) -> str:
        """`bqd,bkd->bqd, whole=k`: the same in each process."""
        said = [f"{kind}={getattr(self, kind)}" for kind in ("whole", *_REDUCED)]
        return ", ".join([self.loops.replace(" ", ""), *(x for x in said if x[-1] != "=")])


def terms(statement: KernelLoops) -> tuple[list[str], list[str]]:
    """Return letters of each operand and of each result."""
    operands, _, results = statement.loops.replace(" ", "").partition("->")
    return operands.split(",") if operands else [], results.split(",")


def check_statement(statement: KernelLoops) -> None:
    """Refuse a statement that contradicts itself.

    Raises:
        TraceError: with the statement, the letter, and what to write instead.
    """
    for problem in _problems(statement):
        raise TraceError(f"the loops of a kernel, {statement}: {problem}")


def _problems(statement: KernelLoops) -> Iterator[str]:
    text = statement.loops.replace(" ", "")
    if text.count("->") != 1:
        yield "write the operands, `->`, the results, as `bqd,bkd->bqd`"
        return
    bad = sorted({c for c in text.replace("->", "").replace(",", "") if not _is_letter(c)})
    if bad:
        yield f"{bad[0]!r} is no loop; a loop is one letter"
        return
    operands, results = terms(statement)
    for term in (*operands, *results):
        twice = [letter for letter, count in Counter(term).items() if count > 1]
        if twice:
            yield f"{twice[0]!r} stands twice in {term!r}; give one of the dims its own letter"
    yield from _problems_of_kinds(statement, set("".join(operands + results)))
    read = set("".join(operands))
    for letter in sorted(set("".join(operands + results)) - set(statement.whole)):
        yield from _problems_of_letter(letter, _kind(statement, letter), read, results)


def _problems_of_kinds(statement: KernelLoops, letters: set[str]) -> Iterator[str]:
    kinds = {kind: set(getattr(statement, kind)) for kind in ("whole", *_REDUCED)}
    for kind, named in kinds.items():
        unknown = sorted(named - letters)
        if unknown:
            yield f"{kind}={unknown[0]!r} is in no operand and no result"
    for (kind, named), (other, others) in itertools.combinations(kinds.items(), 2):
        if named & others:
            yield f"{min(named & others)!r} is in {kind}= and in {other}="


def _problems_of_letter(
    letter: str, kind: str, read: set[str], results: Sequence[str]
) -> Iterator[str]:
    places = sum(letter in term for term in results)
    if kind != PARALLEL and places:
        yield f"{letter!r} is reduced but stands in a result; drop one of the two"
    elif kind == PARALLEL and not places:
        yield (
            f"{letter!r} is in no result; say sum=, max= or min={letter!r} if the parts combine "
            f"so, else whole={letter!r}"
        )
    elif kind == PARALLEL and places < len(results):
        yield (
            f"{letter!r} is in one result and not in another, of which each part would hold a "
            f"part only; say whole={letter!r}"
        )
    elif letter not in read:
        yield f"{letter!r} is in no operand, so a part has no size; say whole={letter!r}"


def _is_letter(char: str) -> bool:
    return char.isascii() and char.isalpha()


def loop_rule(
    statement: KernelLoops,
    name: str,
    operands: Sequence[Sequence[int]],
    results: Sequence[Sequence[int]],
) -> LoopRule:
    """Return the loop rule of a kernel on given shapes.

    Args:
        statement: The loops that its author stated.
        name: The name for messages.
        operands: Shapes of the operands.
        results: Shapes of the results.

    Raises:
        TraceError: the statement does not fit the shapes.
    """
    of_operands, of_results = terms(statement)
    for what, stated, shapes in (
        ("operands", of_operands, operands),
        ("results", of_results, results),
    ):
        if len(stated) != len(shapes):
            raise TraceError(
                f"the loops of {name}, {statement}, have {len(stated)} {what}; the kernel has "
                f"{len(shapes)}"
            )
    sizes: dict[str, int] = {}
    pairs = [*zip(of_operands, operands, strict=True), *zip(of_results, results, strict=True)]
    for term, shape in pairs:
        if len(term) != len(shape):
            raise TraceError(
                f"the loops of {name}, {statement}: {term!r} has {counted(len(term), 'dim')}, the "
                f"array has the shape {tuple(shape)}"
            )
        for letter, size in zip(term, shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise TraceError(
                    f"the loops of {name}, {statement}: {letter!r} is {sizes[letter]} long in one "
                    f"place and {size} in another; give the dims letters of their own"
                )
    loops = LoopList()
    follows = {
        letter: () if letter in statement.whole else loops.add(size, _kind(statement, letter))
        for letter, size in sizes.items()
    }
    maps = [tuple(follows[letter] for letter in term) for term, _ in pairs]
    return LoopRule(
        loops.done(),
        tuple(maps[: len(operands)]),
        tuple(maps[len(operands) :]),
        whole=f"{name} says whole={statement.whole!r}" if statement.whole else "",
    )


def _kind(statement: KernelLoops, letter: str) -> str:
    return next((kind for kind in _REDUCED if letter in getattr(statement, kind)), PARALLEL)
