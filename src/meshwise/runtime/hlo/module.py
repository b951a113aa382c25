"""Optimised HLO text as a frozen value.

Reads what `compiled.as_text()` prints (JAX 0.10 and 0.11, XLA:CPU and GPU).  Only what accounting
needs is understood: computations, instructions, shapes, operands, attributes.  Attributes stay
text until somebody asks, since most are metadata.

Source: the HLO text syntax of OpenXLA, and the text that JAX 0.10.2 prints.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from meshwise.errors import ProgramError

_BITS = {
    "pred": 8,
    "s1": 1, "u1": 1, "s2": 2, "u2": 2, "s4": 4, "u4": 4,
    "f4e2m1fn": 4, "f6e2m3fn": 6, "f6e3m2fn": 6,
    "s8": 8, "u8": 8, "s16": 16, "u16": 16, "s32": 32, "u32": 32, "s64": 64, "u64": 64,
    "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128,
    "token": 0, "opaque": 0,
}  # fmt: skip
_SHAPE = re.compile(r"([a-z][a-z0-9]*)\[([^\]]*)\]")
_HEADER = re.compile(r"^(ENTRY\s+)?%?([^\s(%]+)\s*(?:\(.*\)\s*->\s*.*)?\{\s*$")
_NAME = re.compile(r"^\s+(ROOT\s+)?%?([^\s=%]+) = ")
_OPERAND = re.compile(r"^(?:(.*)\s)?%?([^\s%]+)$")
_COMMENT = re.compile(r"/\*.*?\*/")
# A string is one mark: brackets and commas in it are text.
_STRING = r'"(?:[^"\\]+|\\.?)*"?'
_BRACKET = re.compile(_STRING + r"|[(){}\[\]]", re.DOTALL)
_SEPARATOR = re.compile(_STRING + r"|[(){}\[\],]", re.DOTALL)
_ATTRIBUTES = "frontend_attributes={"
_OPENING = frozenset("({[")
_CLOSING = frozenset(")}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class HloShape:
    """Shape of one array: HLO dtype name and dims (bounds, where a dim is dynamic)."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Elements of the array."""
        return math.prod(self.dims)

    @property
    def num_bytes(self) -> int:
        """Bytes of the array, elements below one byte packed.

        Raises:
            ProgramError: The dtype is not known.
        """
        if self.dtype in _BITS:
            bits = _BITS[self.dtype]
        elif self.dtype.startswith("f8"):
            bits = 8
        else:
            raise ProgramError(f"HLO text has the dtype {self.dtype!r}, whose size is not known")
        return -(-self.num_elements * bits // 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class HloInstruction:
    """One HLO instruction.

    Attributes:
        name: The name without the percent sign; unique in its computation.
        opcode: The opcode as printed, `all-gather-start` included.
        shapes: Leaf arrays of the result, tuples flattened in order.
        operands: Names of the operands.  For `constant` and `parameter` empty.
        operand_types: Types printed in front of the operands (older and GPU texts), else empty.
        literal: The text between the parentheses of `constant` and `parameter`.
        attributes: All text after the operands.
        is_root: Whether it is the result of its computation.
    """

    name: str
    opcode: str
    shapes: tuple[HloShape, ...]
    operands: tuple[str, ...]
    operand_types: tuple[str, ...]
    literal: str
    attributes: str
    is_root: bool

    def attribute(self, name: str) -> str | None:
        """Return the text of the attribute `name`, or None."""
        head = name + "="
        if head not in self.attributes:
            return None
        for part in split_top_level(self.attributes):
            if part.startswith(head):
                return part[len(head) :]
        return None

    def computation_names(self, name: str) -> tuple[str, ...]:
        """Return the computations that an attribute names, as `calls=%f`, or several in braces."""
        text = self.attribute(name)
        return tuple(re.findall(r"[^\s,{}%]+", text)) if text else ()

    @property
    def backend_config(self) -> dict[str, object]:
        """The backend config, if it is a JSON object; else empty."""
        text = self.attribute("backend_config") or ""
        try:
            value = json.loads(text)
            value = json.loads(value) if isinstance(value, str) else value
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def op_name(self) -> str:
        """`op_name` of the metadata, as `jit(f)/shard_map/psum`; empty if there is none."""
        found = re.search(r'op_name="((?:[^"\\]|\\.)*)"', self.attributes)
        return found.group(1) if found else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """One HLO computation; text order is the schedule, if the module has one."""

    name: str
    instructions: tuple[HloInstruction, ...]
    by_name: dict[str, HloInstruction]

    @property
    def root(self) -> HloInstruction:
        """The instruction whose value the computation returns."""
        return next((i for i in self.instructions if i.is_root), self.instructions[-1])

    def parameter(self, number: int) -> HloInstruction | None:
        """Return the parameter instruction `number`."""
        for instruction in self.instructions:
            if instruction.opcode == "parameter" and instruction.literal.strip() == str(number):
                return instruction
        return None

    def operand_shapes(self, instruction: HloInstruction) -> tuple[tuple[HloShape, ...], ...]:
        """Return the leaf shapes of each operand.

        Raises:
            ProgramError: An operand is neither defined here nor printed with its type.
        """
        shapes = []
        for name, text in zip(instruction.operands, instruction.operand_types, strict=True):
            if name in self.by_name:
                shapes.append(self.by_name[name].shapes)
            elif text:
                shapes.append(parse_shapes(text))
            else:
                raise ProgramError(
                    f"HLO text: operand {name!r} of {instruction.name!r} is not defined in "
                    f"computation {self.name!r}"
                )
        return tuple(shapes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One HLO module.

    Attributes:
        name: The name as printed.
        entry: Name of the entry computation.
        computations: By name, in text order.
        num_replicas: `replica_count` of the header, 1 if absent.
        num_partitions: `num_partitions` of the header, 1 if absent.
    """

    name: str
    entry: str
    computations: dict[str, Computation]
    num_replicas: int
    num_partitions: int


def parse_module(text: str) -> Module:
    """Read a module.

    Args:
        text: What `compiled.as_text()` returns.

    Raises:
        ProgramError: The text is not an HLO module, or a line cannot be read.
    """
    head = re.search(r"^HloModule\s+([^\s,]+)(.*)$", text, re.MULTILINE)
    if head is None:
        raise ProgramError("not HLO text: no line begins with 'HloModule'")
    computations: dict[str, Computation] = {}
    entry = ""
    for is_entry, name, lines in _blocks(text):
        instructions = tuple(_instruction(line) for line in lines)
        if not instructions:
            raise ProgramError(f"HLO text: computation {name!r} has no instruction")
        computations[name] = Computation(
            name=name, instructions=instructions, by_name={i.name: i for i in instructions}
        )
        entry = name if is_entry else entry
    if not entry:
        raise ProgramError(f"HLO module {head.group(1)!r} has no ENTRY computation")
    return Module(
        name=head.group(1),
        entry=entry,
        computations=computations,
        num_replicas=_header_int(head.group(2), "replica_count"),
        num_partitions=_header_int(head.group(2), "num_partitions"),
    )


@lru_cache(maxsize=4096)
def parse_shapes(text: str) -> tuple[HloShape, ...]:
    """Return the leaf arrays of a type, as `(f32[2,3]{1,0}, (s32[]))`; tokens are left out."""
    shapes = []
    for dtype, dims in _SHAPE.findall(text):
        if dtype in ("token", "opaque"):
            continue
        sizes = tuple(int(dim.lstrip("<=")) for dim in dims.split(",") if dim.strip())
        shapes.append(HloShape(dtype=dtype, dims=sizes))
    return tuple(shapes)


def split_top_level(text: str) -> Iterator[str]:
    """Return the parts between commas that are in no bracket and no string, stripped."""
    start = depth = 0
    for found in _SEPARATOR.finditer(text):
        mark = found.group()
        if mark == ",":
            if not depth:
                yield text[start : found.start()].strip()
                start = found.end()
        elif mark in _OPENING:
            depth += 1
        elif mark in _CLOSING:
            depth = max(depth - 1, 0)
    if text[start:].strip():
        yield text[start:].strip()


def _header_int(text: str, name: str) -> int:
    found = re.search(rf"\b{name}=(\d+)", text)
    return int(found.group(1)) if found else 1


def _blocks(text: str) -> Iterator[tuple[bool, str, list[str]]]:
    """Return the computations as (is entry, name, one string per instruction)."""
    current: tuple[bool, str, list[str]] | None = None
    pending = ""
    for line in text.splitlines():
        if current is None:
            found = _HEADER.match(line)
            if found and not line.startswith("HloModule"):
                current = (found.group(1) is not None, found.group(2), [])
        elif line.startswith("}") and not (pending and line.startswith("}}")):
            if pending:
                raise ProgramError(f"HLO text: cannot read the instruction {pending[:200]!r}")
            yield current
            current = None
        elif line.strip():
            # A long constant may be printed over several lines, and what a kernel says of itself.
            pending = pending + line if pending else line
            if _is_complete(pending):
                current[2].append(pending)
                pending = ""


def _is_complete(line: str) -> bool:
    start = line.find("(")
    while start >= 0:
        start = _closing(line, start)
        if start < 0:
            return False
        start = line.find("(", start + 1)
        if line.find('"') >= 0 and 0 <= line.find('"') < start:
            break  # Only strings of metadata follow, which never span lines.
    attributes = line.find(_ATTRIBUTES)
    return attributes < 0 or _closing(line, attributes + len(_ATTRIBUTES) - 1) >= 0


def _instruction(line: str) -> HloInstruction:
    if "/*" in line:
        line = _COMMENT.sub("", line)
    found = _NAME.match(line)
    if found is None:
        raise ProgramError(f"HLO text: cannot read the instruction {line.strip()[:200]!r}")
    position = found.end()
    if line[position] == "(":
        type_end = _closing(line, position) + 1
    else:
        type_end = line.find(" ", position)
    opening = line.find("(", type_end)
    closing = _closing(line, opening) if opening >= 0 else -1
    if type_end <= 0 or closing < 0:
        raise ProgramError(f"HLO text: cannot read the instruction {line.strip()[:200]!r}")
    opcode = line[type_end:opening].strip()
    inner = line[opening + 1 : closing]
    operands: list[str] = []
    types: list[str] = []
    if opcode not in ("constant", "parameter", "iota"):
        for part in split_top_level(inner):
            operand = _OPERAND.match(part)
            if operand is None:
                raise ProgramError(f"HLO text: cannot read the operand {part[:200]!r}")
            operands.append(operand.group(2))
            types.append(operand.group(1) or "")
    return HloInstruction(
        name=found.group(2),
        opcode=opcode,
        shapes=parse_shapes(line[position:type_end]),
        operands=tuple(operands),
        operand_types=tuple(types),
        literal="" if operands else inner,
        attributes=line[closing + 1 :].lstrip(", "),
        is_root=found.group(1) is not None,
    )


def _closing(text: str, start: int) -> int:
    """Return the position of the bracket that closes the one at `start`, or -1."""
    depth = 0
    for found in _BRACKET.finditer(text, start):
        mark = found.group()
        if mark in _OPENING:
            depth += 1
        elif mark in _CLOSING:
            depth -= 1
            if depth == 0:
                return found.start()
    return -1
