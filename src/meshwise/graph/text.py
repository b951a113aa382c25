"""Graphs as text, one line an operator, and back.

    inputs %0 %1
    %0 float32[64,64] "params/w"
    %1 float32[8,64]
    %2 float32[8,64] = dot_general(%1, %0) {"flop": 65536.0, "heavy": true, "loops": "8 64 sum:64",
        "linear": [[0], [1]], "dims": "0 2, 2 1 -> 0 1"}             (one line in the text)
    outputs %2

A tensor is `%id dtype[shape]`, with `/bytes` where the dtype does not name the bits of an element,
its name, `generated`, and `sharers:` with their number.  What follows an operator in braces is
JSON of the fields that are not as usual: of its rule the loops (with the monoid that reduces
them, and `block`) and for each operand and result the loops that its dims follow (`-` for none,
`0.1` for several, `()` where there are no dims).  Bodies follow their operator, each indented.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeAlias, TypeVar, cast

from meshwise.graph.graph import Graph, Operator, Scratch, Tensor
from meshwise.graph.loops import PARALLEL, DimMap, Loop, LoopRule
from meshwise.graph.sent import Dispatch, Halo, Ring
from meshwise.graph.structure import BodyPart, Structure

Json: TypeAlias = "str | float | bool | Sequence[Json] | Mapping[str, Json] | None"
Record = TypeVar("Record")

_TENSOR = re.compile(
    r'%(\d+) ([^\s\[]+)\[([\d,]*)\](?:/(\d+))?(?: ("(?:[^"\\]|\\.)*"))?'
    r"( generated)?(?: sharers:(\d+))?(?:, )?"
)
_OPERATOR = re.compile(r"%? ?= (\S+?)\(([%\d, ]*)\) (\{.*\})")
_ID = re.compile(r"%(\d+)")
_BITS = re.compile(r"\d+")
_NO_DIMS, _NO_LOOP = "()", "-"


# -- printing -------------------------------------------------------------------------------------


def graph_text(graph: Graph) -> str:
    """Return a graph as text, which `parse_graph` reads back.

    Args:
        graph: A graph; its operators may have bodies.

    Returns:
        One line an operator and an input, and the lines of bodies, with a line feed at the end.
    """
    return "".join(f"{line}\n" for line in _lines(graph))


def graph_difference(first: Graph, second: Graph) -> str:
    """Return what differs between two graphs as a unified difference of their texts.

    Tensors are numbered anew in the second text, so that an operator more or less does not make
    all lines after it differ: a tensor that is made by the same line has the number that it has
    in the first; others are `%+id`.

    Args:
        first: The graph before.
        second: The graph after.

    Returns:
        A unified difference; empty if the graphs are equal but for the numbers of their tensors.
    """
    before, after = list(_lines(first)), list(_lines(second))
    scopes = _scopes(after)
    masked = [[_ID.sub("%", line) for line in lines] for lines in (before, after)]
    numbers: dict[tuple[int, str], str] = {}
    for block in difflib.SequenceMatcher(None, *masked, autojunk=False).get_matching_blocks():
        for old, new in zip(
            range(block.a, block.a + block.size), range(block.b, block.b + block.size), strict=True
        ):
            ids = zip(_made(after[new]), _made(before[old]), strict=True)
            numbers |= {(scopes[new], mine): theirs for mine, theirs in ids}

    def renumbered(line: str, scope: int) -> str:
        return _ID.sub(lambda found: f"%{numbers.get((scope, found[1]), '+' + found[1])}", line)

    changed = map(renumbered, after, scopes)
    return "\n".join(difflib.unified_diff(before, list(changed), lineterm=""))


def _scopes(lines: Sequence[str]) -> list[int]:
    """Return for each line the line in which its graph begins: bodies have their own tensors."""
    found: list[int] = []
    begins: dict[int, int] = {}
    for n, line in enumerate(lines):
        text = line.lstrip(" ")
        depth = len(line) - len(text)
        if text.startswith("inputs "):
            begins[depth] = n
        found.append(begins[depth])
    return found


def _made(line: str) -> list[str]:
    """Return the tensors that a line is about: inputs, constants and results of operators."""
    return _ID.findall(line.split(" = ")[0]) if line.lstrip(" ").startswith("%") else []


def _lines(graph: Graph) -> Iterator[str]:
    made = {t for operator in graph.operators for t in operator.outputs}
    yield "inputs " + _ids(graph.inputs, " ")
    for t in range(len(graph.tensors)):
        if t not in made:
            yield _tensor_text(graph, t)
    for operator in graph.operators:
        results = ", ".join(_tensor_text(graph, t) for t in operator.outputs) or "%"
        known = json.dumps(_operator_fields(operator))
        yield f"{results} = {operator.kind}({_ids(operator.inputs, ', ')}) {known}"
        for body in operator.bodies:
            yield from (f"  {line}" for line in _lines(body))
    if graph.aliases:
        yield "aliases " + " ".join(f"{i}={j}" for i, j in graph.aliases)
    yield "outputs " + _ids(graph.outputs, " ")


def _ids(tensors: Sequence[int], between: str) -> str:
    return between.join(f"%{t}" for t in tensors)


def _tensor_text(graph: Graph, number: int) -> str:
    tensor = graph.tensors[number]
    shape = ",".join(map(str, tensor.shape))
    size = "" if tensor.itemsize == _usual_bytes(tensor.dtype) else f"/{tensor.itemsize}"
    name = f" {json.dumps(tensor.name)}" if tensor.name else ""
    generated = " generated" if tensor.generated else ""
    sharers = f" sharers:{tensor.sharers}" if tensor.sharers else ""
    return f"%{number} {tensor.dtype}[{shape}]{size}{name}{generated}{sharers}"


def _usual_bytes(dtype: str) -> int:
    """Return the bytes of an element by the bits in the name of its dtype."""
    bits = _BITS.search(dtype)
    return int(bits[0]) // 8 if bits else 1


def _operator_fields(operator: Operator) -> dict[str, Json]:
    own = _unusual(operator)
    for name in ("kind", "inputs", "outputs", "bodies", "rule"):
        own.pop(name, None)
    rule = _unusual(operator.rule)
    loops = " ".join(map(_loop_text, operator.rule.loops))
    sides = (operator.rule.operands, operator.rule.results)
    dims = " -> ".join(", ".join(map(_dims_text, side)) for side in sides)
    for name in ("operands", "results"):
        del rule[name]
    return own | rule | {"loops": loops, "dims": dims}


def _unusual(
    record: Operator | LoopRule | Structure | BodyPart | Halo | Ring | Dispatch | Scratch,
) -> dict[str, Json]:
    """Return the fields of a record that have no default value or another one, as JSON."""
    found = {field.name: (getattr(record, field.name), field.default) for field in fields(record)}
    return {
        name: _plain(value)
        for name, (value, default) in found.items()
        if default is MISSING or value != default
    }


def _plain(value: object) -> Json:
    if isinstance(value, Structure | BodyPart | Halo | Ring | Dispatch | Scratch):
        return _unusual(value)
    if isinstance(value, frozenset):
        return sorted(cast(frozenset[int], value))
    if isinstance(value, tuple):
        return [_plain(item) for item in cast(tuple[object, ...], value)]
    return cast(Json, value)


def _loop_text(loop: Loop) -> str:
    kind = "" if loop.kind == PARALLEL else f"{loop.kind}:"
    return f"{kind}{loop.size}{':block' if loop.block else ''}"


def _dims_text(dims: DimMap) -> str:
    words = [".".join(map(str, loops)) if loops else _NO_LOOP for loops in dims]
    return " ".join(words) if words else _NO_DIMS


# -- reading --------------------------------------------------------------------------------------


def parse_graph(text: str) -> Graph:
    """Return the graph that prints as a text.

    Args:
        text: What `graph_text` returned.

    Returns:
        A graph equal to the one that was printed.

    Raises:
        ValueError: Naming the first line that is not understood.
    """
    reading = _Reading(text.splitlines())
    graph = reading.graph("")
    if reading.at < len(reading.lines):
        raise reading.error()
    return graph


@dataclass(slots=True)
class _Reading:
    """A text that is being read.

    Attributes:
        lines: All its lines.
        at: How many of them were read.
    """

    lines: Sequence[str]
    at: int = 0

    def error(self) -> ValueError:
        found = repr(self.lines[self.at]) if self.at < len(self.lines) else "its end"
        return ValueError(f"line {self.at + 1} of the graph: not understood: {found}")

    def begins(self, words: str) -> bool:
        return self.at < len(self.lines) and self.lines[self.at].startswith(words)

    def rest(self, words: str) -> str:
        """Return what follows `words` in the next line, which begins with them."""
        if not self.begins(words):
            raise self.error()
        self.at += 1
        return self.lines[self.at - 1][len(words) :]

    def graph(self, indent: str) -> Graph:
        inputs = _numbers(self.rest(f"{indent}inputs "))
        tensors: dict[int, Tensor] = {}
        operators: list[Operator] = []
        while self.begins(f"{indent}%"):
            self._tensors_or_operator(indent, tensors, operators)
        aliases = ""
        if self.begins(f"{indent}aliases "):
            aliases = self.rest(f"{indent}aliases ")
        outputs = _numbers(self.rest(f"{indent}outputs "))
        pairs = [pair.split("=") for pair in aliases.split()]
        if sorted(tensors) != list(range(len(tensors))):
            raise ValueError(f"the graph says nothing of some tensors below %{max(tensors)}")
        return Graph(
            tensors=tuple(tensors[t] for t in range(len(tensors))),
            operators=tuple(operators),
            inputs=inputs,
            outputs=outputs,
            aliases=tuple((int(i), int(j)) for i, j in pairs),
        )

    def _tensors_or_operator(
        self, indent: str, tensors: dict[int, Tensor], operators: list[Operator]
    ) -> None:
        line, position = self.lines[self.at], len(indent)
        outputs: list[int] = []
        while found := _TENSOR.match(line, position):
            number, position = int(found[1]), found.end()
            outputs.append(number)
            tensors[number] = _tensor(found)
        if position < len(line):
            found = _OPERATOR.fullmatch(line, position)
            if found is None:
                raise self.error()
            self.at += 1
            bodies: list[Graph] = []
            while self.begins(f"{indent}  inputs "):
                bodies.append(self.graph(f"{indent}  "))
            operators.append(_operator(found, outputs, bodies))
        else:
            self.at += 1


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in _ID.findall(text))


def _tensor(found: re.Match[str]) -> Tensor:
    dtype = found[2]
    return Tensor(
        shape=tuple(int(size) for size in found[3].split(",") if size),
        dtype=dtype,
        itemsize=int(found[4]) if found[4] else _usual_bytes(dtype),
        name=json.loads(found[5]) if found[5] else "",
        generated=bool(found[6]),
        sharers=int(found[7] or 0),
    )


def _operator(found: re.Match[str], outputs: Sequence[int], bodies: Sequence[Graph]) -> Operator:
    data: dict[str, Json] = json.loads(found[3])
    rule: dict[str, Any] = {
        key: _frozen(data.pop(key)) for key in ("linear", "whole", "ruled") if key in data
    }
    rule["halos"] = tuple(_record(Halo, halo) for halo in _objects(data.pop("halos", ())))
    if (ring := data.pop("ring", None)) is not None:
        rule["ring"] = _record(Ring, cast(Mapping[str, Json], ring))
    if (dispatch := data.pop("dispatch", None)) is not None:
        rule["dispatch"] = _record(Dispatch, cast(Mapping[str, Json], dispatch))
    operands, results = (_dim_maps(side) for side in cast(str, data.pop("dims")).split(" -> "))
    loops = tuple(_loop(word) for word in cast(str, data.pop("loops")).split())
    structure, scratch = data.pop("structure", None), data.pop("scratch", None)
    return _record(
        Operator,
        data,
        kind=found[1],
        inputs=_numbers(found[2]),
        outputs=tuple(outputs),
        rule=LoopRule(loops=loops, operands=operands, results=results, **rule),
        bodies=tuple(bodies),
        structure=_structure(structure) if isinstance(structure, Mapping) else None,
        scratch=_record(Scratch, scratch) if isinstance(scratch, Mapping) else None,
    )


def _structure(data: Mapping[str, Json]) -> Structure:
    sets = ("stacked_operands", "stacked_results", "whole_operands")
    return _record(
        Structure,
        {key: value for key, value in data.items() if key != "parts" and key not in sets},
        parts=tuple(_record(BodyPart, part) for part in _objects(data["parts"])),
        **{key: frozenset(cast(Sequence[int], data[key])) for key in sets if key in data},
    )


def _objects(value: Json) -> Sequence[Mapping[str, Json]]:
    return cast(Sequence[Mapping[str, Json]], value)


def _record(kind: Callable[..., Record], data: Mapping[str, Json], /, **more: object) -> Record:
    return kind(**{key: _frozen(value) for key, value in data.items()}, **more)


def _frozen(value: Json) -> object:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(_frozen(item) for item in value)
    return value


def _loop(word: str) -> Loop:
    kind, _, size = word.removesuffix(":block").rpartition(":")
    return Loop(int(size), kind or PARALLEL, word.endswith(":block"))


def _dim_maps(side: str) -> tuple[DimMap, ...]:
    return tuple(_dim_map(words) for words in side.split(", ") if words)


def _dim_map(words: str) -> DimMap:
    if words == _NO_DIMS:
        return ()
    return tuple(
        () if word == _NO_LOOP else tuple(map(int, word.split("."))) for word in words.split()
    )
