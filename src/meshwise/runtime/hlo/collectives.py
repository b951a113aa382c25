"""The collectives of a compiled program, as the plan counts them.

Bytes are B of docs/facts.md section 1: the tensor as its group sees it whole.  From an operand of
b bytes in a group of n: all-reduce and reduce-scatter b; all-gather, all-to-all and permute
n b.  Operands are used, never results, since asynchronous forms wrap their results.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwise.runtime.hlo.groups import Groups, axis_groups, permute_groups, replica_groups
from meshwise.runtime.hlo.module import Computation, HloInstruction, Module, parse_module
from meshwise.runtime.hlo.walk import executed

KINDS = {
    "all-reduce": "all-reduce",
    "reduce-scatter": "reduce-scatter",
    "all-gather": "all-gather",
    "all-to-all": "all-to-all",
    "ragged-all-to-all": "all-to-all",
    "collective-permute": "permute",
    "collective-broadcast": "broadcast",
}
_WHOLE_OPERAND = ("all-reduce", "reduce-scatter", "broadcast")
# XLA:TPU runs an asynchronous collective in several fusions, beside other work.  Each of them
# repeats it, with the channel and the number of the chain (seen with libtpu 0.0.42.1).
_CHAIN = re.compile(r"chain_id=\"?\d+\"?")
# How XLA:TPU writes a reduce-scatter: a fusion of this name that keeps a part of an all-reduce.  If
# the parts do not fill its tiles they are padded, and a permute then moves the rows that lie wrong.
# These rows were counted with the reduce-scatter (1 % of what it sends, 32,000 rows in 8 parts).
_SCATTER = "all-reduce-scatter"


@dataclass(frozen=True, slots=True, kw_only=True)
class HloCollective:
    """One collective instruction at one call site.

    Attributes:
        kind: "all-reduce", "reduce-scatter", "all-gather", "all-to-all", "permute"; also
            "broadcast", which no plan of ours asks for.
        group_size: Devices of one group; the largest if they differ.
        groups: Device numbers, row-major over the mesh.
        axes: Mesh axis positions, ascending, if the groups are those of mesh axes; else None.
        num_bytes: B of docs/facts.md section 1 for one group and one execution.
        count: Executions in one run of the program.
        num_arrays: Arrays that it sends at once: more than one where several were merged.
        computation: Name of the computation in which it stands.
        name: Name of the instruction.
        op_name: Where it comes from, as XLA's metadata say.
    """

    kind: str
    group_size: int
    groups: Groups
    axes: tuple[int, ...] | None
    num_bytes: int
    count: int
    num_arrays: int
    computation: str
    name: str
    op_name: str


def hlo_collectives(
    text: str | Module, mesh_sizes: Sequence[int], *, unknown_trip_count: int | None = None
) -> tuple[HloCollective, ...]:
    """Return the collectives of a program over more than one device, in text order of call sites.

    Every branch of a conditional counts once.

    Args:
        text: Optimised HLO text, or the module read from it.
        mesh_sizes: Sizes of the mesh axes, major to minor; device numbers are row-major.
        unknown_trip_count: Trips of loops whose count the text does not tell.

    Raises:
        ProgramError: The text cannot be read, or a loop around a collective runs an unknown
            number of times and `unknown_trip_count` is None.
    """
    module = parse_module(text) if isinstance(text, str) else text
    num_devices = max(module.num_partitions * module.num_replicas, math.prod(mesh_sizes))
    known = axis_groups(mesh_sizes)
    chains: set[tuple[str | None, str]] = set()

    def read(computation: Computation, instruction: HloInstruction) -> HloCollective | None:
        kind = collective_kind(instruction)
        if kind is None or (kind == "permute" and _ends_scatter(computation, instruction)):
            return None
        if kind == "all-reduce" and computation.name.startswith(_SCATTER):
            kind = "reduce-scatter"
        part = chain_part(instruction)
        if part in chains:
            return None
        if part is not None:
            chains.add(part)
        if kind == "permute":
            groups, axes = permute_groups(instruction, mesh_sizes, known)
        else:
            groups = replica_groups(module, instruction, kind, num_devices)
            axes = known.get(frozenset(frozenset(group) for group in groups))
        group_size = max((len(group) for group in groups), default=1)
        if group_size == 1:
            return None
        operand_bytes = _operand_bytes(computation, instruction)
        return HloCollective(
            kind=kind,
            group_size=group_size,
            groups=groups,
            axes=axes,
            num_bytes=operand_bytes * (1 if kind in _WHOLE_OPERAND else group_size),
            count=1,
            num_arrays=_num_arrays(module, computation, instruction),
            computation=computation.name,
            name=instruction.name,
            op_name=instruction.op_name,
        )

    found = executed(module, read, unknown_trip_count=unknown_trip_count)
    return tuple(replace(item.value, count=item.count) for item in found)


def collective_kind(instruction: HloInstruction) -> str | None:
    """Return the kind of a collective as in `HloCollective`; None for what moves nothing."""
    opcode = instruction.opcode
    if opcode == "send" and "_xla_send_recv_source_target_pairs" in instruction.attributes:
        return "permute"  # XLA:GPU splits large permutes into send and recv.
    # The -done half of an asynchronous pair moves nothing more.
    return KINDS.get(opcode.removesuffix("-start"))


def chain_part(instruction: HloInstruction) -> tuple[str | None, str] | None:
    """Return the channel and the number of the chain that a collective belongs to, or None."""
    if "chain_id" not in instruction.attributes or collective_kind(instruction) is None:
        return None
    chain = _CHAIN.search(instruction.attribute("frontend_attributes") or "")
    return None if chain is None else (instruction.attribute("channel_id"), chain.group())


def _ends_scatter(computation: Computation, permute: HloInstruction) -> bool:
    """Return whether a permute moves rows of a padded reduce-scatter to where they belong."""
    source = computation.by_name[permute.operands[0]]
    while source.opcode in ("slice", "bitcast", "copy"):
        source = computation.by_name[source.operands[0]]
    called = source.computation_names("calls") if source.opcode == "fusion" else ()
    return any(name.startswith(_SCATTER) for name in called)


def _num_arrays(module: Module, computation: Computation, instruction: HloInstruction) -> int:
    """Return the number of arrays that are sent: of operands, or of what is joined to the one.

    XLA:GPU merges by writing arrays into a flat one first.
    """
    if len(instruction.operands) != 1:
        return len(instruction.operands)
    source = computation.by_name[instruction.operands[0]]
    while source.opcode in ("bitcast", "fusion"):
        if source.opcode == "fusion":
            (name,) = source.computation_names("calls")
            computation = module.computations[name]
            source = computation.root
        else:
            source = computation.by_name[source.operands[0]]
    is_flat = len(source.shapes) == 1 and len(source.shapes[0].dims) == 1
    return len(source.operands) if source.opcode == "concatenate" and is_flat else 1


def _operand_bytes(computation: Computation, instruction: HloInstruction) -> int:
    shapes = computation.operand_shapes(instruction)
    # `ragged-all-to-all` and `send` have their data first, then offsets or a token.
    data = shapes[:1] if instruction.opcode in ("ragged-all-to-all", "send") else shapes
    return sum(shape.num_bytes for operand in data for shape in operand)
