"""`docs/primitives.md`: what happens to each primitive.  `python -m rule_cases.document` writes it.

The loops of a primitive are those of the case that has most of them, as its rule states them; so
they are what is tested.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import jax
from jax.extend.core import Primitive, primitives

from meshwise.graph.loops import PARALLEL, DimMap, LoopRule
from meshwise.jax_compat.jaxprs import CALL_BODIES
from meshwise.rules.elementwise import NEWER
from meshwise.rules.primitive import Equation
from meshwise.rules.table import RULES, primitive_rule
from meshwise.rules.unruled import WHY_UNRULED
from meshwise.trace.flatten import flatten
from rule_cases.case import Case
from rule_cases.table import CASES, ON_DEVICES

PATH = Path(__file__).parents[2] / "docs" / "primitives.md"

# Higher-order primitives whose bodies are planned as part of the step.
CONTROL_FLOW = ("cond", "custom_linear_solve", "loss_and_grad", "scan", "while")

_HEADER = """# Primitives

Written by `python -m rule_cases.document` (in `tests/`) from the rules and the cases that test
them, for JAX {version}.

A letter is a loop: a mesh axis may split every dim that follows it. `·` is a dim that stays whole
(or has size 1), `ab` a dim that is the product of two loops, the first one major. A loop is
parallel unless it is named: over `b: sum` the results are partial sums. *Blocks* need contiguous
parts: such a loop may be split over devices, not over micro-batches. *Partial* lists the operands
that may be partial sums together, which then pass through. The shapes are those of one test.
Of attention `de` are two loops over the same rows: along the first keys go round a ring, along the
second each device has all keys of its part of the ring.

## Ruled

| primitive | example | loops | reduced | partial | whole |
|---|---|---|---|---|---|
"""


def public_names() -> set[str]:
    """Names of the primitives that JAX exports."""
    modules: tuple[ModuleType, ...] = (jax.lax, jax.lax.linalg, primitives)
    return {
        value.name
        for module in modules
        for value in vars(module).values()
        if isinstance(value, Primitive)
    }


def _dims(follows: DimMap) -> str:
    words = ("".join(string.ascii_letters[loop] for loop in loops) or "·" for loops in follows)
    return " ".join(words) or "-"


def _statement(rule: LoopRule) -> str:
    operands = ", ".join(map(_dims, rule.operands))
    return f"{operands} → {', '.join(map(_dims, rule.results))}"


def _reduced(rule: LoopRule) -> str:
    notes: list[str] = []
    for letter, loop in zip(string.ascii_letters, rule.loops, strict=False):
        words = [loop.kind] if loop.kind != PARALLEL else []
        words += ["blocks"] if loop.block else []
        if words:
            notes.append(f"{letter}: {', '.join(words)}")
    return "; ".join(notes)


def _partial(rule: LoopRule) -> str:
    return " or ".join("+".join(str(operand) for operand in group) for group in rule.linear)


def _shapes(equation: Equation) -> str:
    avals = [aval.str_short(short_dtypes=True) for aval in equation.in_avals]
    return " ".join(avals)


def _examples(cases: Sequence[Case]) -> Iterator[Equation]:
    for case in cases:
        with jax.enable_x64(case.x64):
            program = flatten(jax.make_jaxpr(case.fun)(*case.operands))
        yield from (node.equation for node in program.nodes if node.name == case.primitive)


def _row(name: str, cases: Sequence[Case]) -> tuple[str, ...]:
    found = [(equation, primitive_rule(equation).rule(equation)) for equation in _examples(cases)]
    equation, rule = max(found, key=lambda pair: len(pair[1].loops))
    whole = next((other.whole for _, other in found if other.whole), "")
    return (
        f"`{name}`",
        _shapes(equation),
        _statement(rule),
        _reduced(rule),
        _partial(rule),
        whole.replace("|", "\\|"),
    )


def _ruled() -> Iterator[str]:
    cases: dict[str, list[Case]] = {}
    for case in (*CASES, *ON_DEVICES):
        cases.setdefault(case.primitive, []).append(case)
    rows: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(set(RULES) - set(NEWER)):
        first, *rest = _row(name, cases[name])
        rows.setdefault(tuple(rest), []).append(first)
    for rest, names in rows.items():
        yield f"| {' '.join(names)} | {' | '.join(rest)} |"


def document() -> str:
    """The text of the page."""
    lines = [_HEADER.format(version=jax.__version__) + "\n".join(_ruled())]
    lines += ["", "Newer than this JAX and ruled as element-wise: " + ", ".join(NEWER) + "."]
    lines += ["", "## Bodies that are planned with the step", ""]
    lines += ["Control flow: " + ", ".join(f"`{name}`" for name in CONTROL_FLOW) + "."]
    lines += ["", "Calls, inlined: " + ", ".join(f"`{name}`" for name in sorted(CALL_BODIES)) + "."]
    lines += ["", "## Without a rule: replicated and reported, or refused", ""]
    for why in dict.fromkeys(WHY_UNRULED.values()):
        names = sorted(name for name, reason in WHY_UNRULED.items() if reason == why)
        lines.append(f"- {why[0].upper()}{why[1:]}: {', '.join(f'`{n}`' for n in names)}.")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PATH.write_text(document(), encoding="utf-8")
