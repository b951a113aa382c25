"""Whether a compiled program reads a donated argument after it has written over it.

Such a program is a fault of XLA, and its results are wrong without a word.  Copy insertion with
region analysis, which saves the copies of donated state, leaves out a copy that is needed where a
loop reads the argument and nothing orders the loop before the update.  The smallest case is
`lambda p, x: (p - 0.1, jax.lax.map(lambda row: jnp.tanh(row @ p), x))` with `p` donated.

Source: seen on XLA:CPU, JAX 0.10.2; the schedule of the executable shows it.
"""

from __future__ import annotations

import re

from meshwise.runtime.hlo.module import Computation, HloInstruction, Module

_HEADER = re.compile(r"input_output_alias=\{(.*?)\}, [a-z_]+=")
_ALIAS = re.compile(r"\{\s*(\d*)\s*\}: \((\d+), \{\}")
# Their results lie in the buffers of their operands, part by part.
_IN_PLACE = ("while", "call")
_PASS_ON = ("bitcast", "tuple", "get-tuple-element")


def overwritten_too_early(text: str, module: Module) -> tuple[int, ...]:
    """Return the parameters of a program that are read after their buffer holds a result.

    Args:
        text: `compiled.as_text()`, scheduled; the order of its lines is that of execution.
        module: The same, read.

    Returns:
        Numbers of parameters, ascending.
    """
    header = _HEADER.search(text[: text.find("\n")])
    if header is None:
        return ()
    entry = module.computations[module.entry]
    return tuple(
        sorted(
            int(number)
            for position, number in _ALIAS.findall(header[1])
            if _is_read_late(entry, int(number), int(position or 0))
        )
    )


def _is_read_late(entry: Computation, number: int, position: int) -> bool:
    parameter = entry.parameter(number)
    if parameter is None:
        return False
    root = entry.root
    result = root.operands[position] if root.opcode == "tuple" else root.name
    writer = _writer(entry, result)
    if writer.name == parameter.name:
        return False
    order = {instruction.name: place for place, instruction in enumerate(entry.instructions)}
    return any(order[name] > order[writer.name] for name in _readers(entry, parameter.name))


def _writer(entry: Computation, name: str) -> HloInstruction:
    """Return the first instruction that writes the buffer in which a result lies."""
    now = first = entry.by_name[name]
    while True:
        if now.opcode == "bitcast":
            now = first = entry.by_name[now.operands[0]]
            continue
        if now.opcode != "get-tuple-element":
            return first if now.opcode == "parameter" else now
        source = entry.by_name[now.operands[0]]
        if source.opcode not in _IN_PLACE or len(source.operands) != 1:
            return source
        given = entry.by_name[source.operands[0]]
        if given.opcode != "tuple":
            return source
        first, now = source, entry.by_name[given.operands[_index(now)]]


def _index(element: HloInstruction) -> int:
    return int(element.attribute("index") or 0)


def _readers(entry: Computation, parameter: str) -> list[str]:
    """Return the names of what reads a parameter; bitcasts and tuples only pass it on."""
    passed = {parameter}
    readers: list[str] = []
    for now in entry.instructions:
        if now.is_root or passed.isdisjoint(now.operands):
            continue
        if now.opcode in _PASS_ON:
            passed.add(now.name)
        else:
            readers.append(now.name)
    return readers
