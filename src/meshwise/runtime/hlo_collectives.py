"""The collectives of a compiled program, as the plan counts them.

Bytes are B of docs/facts.md section 1: the tensor as its group sees it whole.  From an operand of
b bytes in a group of n: all-reduce and reduce-scatter b; all-gather, all-to-all and permute
n b.  Operands are used, never results, since asynchronous forms wrap their results.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from meshwise.errors import ProgramError
from meshwise.runtime.hlo_parse import Computation, HloInstruction, HloShape, Module, parse_module
from meshwise.runtime.hlo_walk import executed

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

Groups = tuple[tuple[int, ...], ...]


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
        name: Name of the instruction.
        op_name: Where it comes from, as XLA's metadata say.
    """

    kind: str
    group_size: int
    groups: Groups
    axes: tuple[int, ...] | None
    num_bytes: int
    count: int
    name: str
    op_name: str


def hlo_collectives(
    text: str | Module, mesh_sizes: Sequence[int], *, unknown_trip_count: int | None = None
) -> tuple[HloCollective, ...]:
    """Collectives of a program over more than one device, in text order of the call sites.

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
    axis_groups = _axis_groups(mesh_sizes)

    def read(computation: Computation, instruction: HloInstruction) -> HloCollective | None:
        kind = collective_kind(instruction)
        if kind is None:
            return None
        if kind == "permute":
            groups, axes = _permute_groups(instruction, mesh_sizes, axis_groups)
        else:
            groups = _replica_groups(module, instruction, kind, num_devices)
            axes = axis_groups.get(frozenset(frozenset(group) for group in groups))
        group_size = max((len(group) for group in groups), default=1)
        operand_bytes = sum(
            shape.num_bytes
            for shapes in _data_operands(computation, instruction)
            for shape in shapes
        )
        return HloCollective(
            kind=kind,
            group_size=group_size,
            groups=groups,
            axes=axes,
            num_bytes=operand_bytes * (1 if kind in _WHOLE_OPERAND else group_size),
            count=1,
            name=instruction.name,
            op_name=instruction.op_name,
        )

    memo: dict[tuple[str, str], HloCollective | None] = {}

    def cached(computation: Computation, instruction: HloInstruction) -> HloCollective | None:
        key = (computation.name, instruction.name)
        if key not in memo:
            found = read(computation, instruction)
            memo[key] = None if found is None or found.group_size == 1 else found
        return memo[key]

    def weigh(computation: Computation, instruction: HloInstruction) -> float:
        found = cached(computation, instruction)
        # A collective of no bytes (an empty tensor) is still listed.
        return 0.0 if found is None else found.num_bytes + 1e-3

    records = []
    for item in executed(module, weigh, unknown_trip_count=unknown_trip_count):
        found = cached(item.computation, item.instruction)
        if found is not None and item.count:
            records.append(replace(found, count=item.count))
    return tuple(records)


def bytes_by_kind(
    collectives: Iterable[HloCollective],
) -> dict[tuple[str, tuple[int, ...] | Groups], int]:
    """Total bytes, counts multiplied in, per (kind, axes); groups stand in where axes is None."""
    totals: Counter[tuple[str, tuple[int, ...] | Groups]] = Counter()
    for item in collectives:
        key = item.groups if item.axes is None else item.axes
        totals[item.kind, key] += item.num_bytes * item.count
    return dict(totals)


def collective_kind(instruction: HloInstruction) -> str | None:
    """The kind of a collective as in `HloCollective`; None for what moves nothing."""
    opcode = instruction.opcode
    if opcode == "send" and "_xla_send_recv_source_target_pairs" in instruction.attributes:
        return "permute"  # XLA:GPU splits large permutes into send and recv.
    # The -done half of an asynchronous pair moves nothing more.
    return KINDS.get(opcode.removesuffix("-start"))


def _data_operands(
    computation: Computation, instruction: HloInstruction
) -> tuple[tuple[HloShape, ...], ...]:
    shapes = computation.operand_shapes(instruction)
    # `ragged-all-to-all` and `send` have their data first, then offsets or a token.
    return shapes[:1] if instruction.opcode in ("ragged-all-to-all", "send") else shapes


def _axis_groups(mesh_sizes: Sequence[int]) -> dict[frozenset[frozenset[int]], tuple[int, ...]]:
    """Groups of every set of mesh axes; axes of size 1 never stand in the value."""
    real = [axis for axis, size in enumerate(mesh_sizes) if size > 1]
    table: dict[frozenset[frozenset[int]], tuple[int, ...]] = {}
    for length in range(1, len(real) + 1):
        for axes in itertools.combinations(real, length):
            groups = mesh_groups(mesh_sizes, axes)
            table[frozenset(frozenset(group) for group in groups)] = axes
    return table


def mesh_groups(mesh_sizes: Sequence[int], axes: Sequence[int]) -> Groups:
    """Groups of devices that differ only along `axes`; devices are numbered row-major."""
    members: dict[tuple[int, ...], list[int]] = {}
    for number, place in enumerate(itertools.product(*(range(size) for size in mesh_sizes))):
        rest = tuple(index for axis, index in enumerate(place) if axis not in axes)
        members.setdefault(rest, []).append(number)
    return tuple(tuple(group) for group in members.values())


def _permute_groups(
    instruction: HloInstruction,
    mesh_sizes: Sequence[int],
    axis_groups: dict[frozenset[frozenset[int]], tuple[int, ...]],
) -> tuple[Groups, tuple[int, ...] | None]:
    """The least set of mesh axes along which every pair moves, and its groups."""
    pattern = r"source_target_pairs=\{(\{.*?\})\}"
    found = re.search(pattern, instruction.attributes)
    if found is None:
        raise ProgramError(f"HLO text: {instruction.name!r} has no source_target_pairs")
    pairs = [
        (int(a), int(b)) for a, b in re.findall(r"\{\s*(\d+)\s*,\s*(\d+)\s*\}", found.group(1))
    ]
    if max(max(pair) for pair in pairs) < math.prod(mesh_sizes):
        moved: set[int] = set()
        for source, target in pairs:
            places = zip(_place(source, mesh_sizes), _place(target, mesh_sizes), strict=True)
            moved |= {axis for axis, (a, b) in enumerate(places) if a != b}
        axes = tuple(sorted(moved))
        return mesh_groups(mesh_sizes, axes), axes
    groups = _components(pairs)
    return groups, axis_groups.get(frozenset(frozenset(group) for group in groups))


def _place(number: int, mesh_sizes: Sequence[int]) -> tuple[int, ...]:
    place = []
    for size in reversed(mesh_sizes):
        number, index = divmod(number, size)
        place.append(index)
    return tuple(reversed(place))


def _components(pairs: Sequence[tuple[int, int]]) -> Groups:
    member: dict[int, set[int]] = {}
    for source, target in pairs:
        joined = member.get(source, {source}) | member.get(target, {target})
        for device in joined:
            member[device] = joined
    return tuple(sorted({tuple(sorted(group)) for group in member.values()}))


def _replica_groups(
    module: Module, instruction: HloInstruction, kind: str, num_devices: int
) -> Groups:
    text = instruction.attribute("replica_groups") or "{}"
    groups = parse_replica_groups(text)
    has_channel = instruction.attribute("channel_id") is not None
    is_global = instruction.attribute("use_global_device_ids") == "true"
    if kind in ("all-reduce", "reduce-scatter", "all-gather") and has_channel and not is_global:
        # Groups name replicas, and each takes in all its partitions.
        replicas = groups or (tuple(range(module.num_replicas)),)
        size = module.num_partitions
        return tuple(
            tuple(replica * size + part for replica in group for part in range(size))
            for group in replicas
        )
    if not groups:
        count = num_devices if has_channel or is_global else module.num_replicas
        return (tuple(range(count)),)
    if not has_channel and not is_global and module.num_partitions > 1:
        # Groups name replicas; each partition exchanges with the same partition elsewhere.
        size = module.num_partitions
        return tuple(
            tuple(replica * size + part for replica in group)
            for group in groups
            for part in range(size)
        )
    return groups


def parse_replica_groups(text: str) -> Groups:
    """Groups from any of XLA's three forms.

    Lists `{{0,1},{2,3}}`; iota tiles `[2,4]<=[4,2]T(1,0)`; mesh axes `mesh['a'=2,'b'=4] {'b'}`.

    Raises:
        ProgramError: None of these forms.
    """
    text = text.strip()
    if text.startswith("{"):
        return tuple(
            tuple(int(word) for word in inner.split(",") if word.strip())
            for inner in re.findall(r"\{([\d\s,]*)\}", text[1:-1])
        )
    iota = re.fullmatch(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if iota:
        shape = _ints(iota.group(1))
        flat = _iota(_ints(iota.group(2)), _ints(iota.group(3)) if iota.group(3) else None)
        size = math.prod(shape[1:])
        return tuple(tuple(flat[i : i + size]) for i in range(0, len(flat), size))
    mesh = re.fullmatch(r"@?mesh\[(.*?)\](.*)\{([^{}]*)\}", text, re.DOTALL)
    if mesh:
        return _mesh_axes_groups(mesh.group(1), mesh.group(2), mesh.group(3), text)
    raise ProgramError(f"HLO text: cannot read the replica groups {text!r}")


def _mesh_axes_groups(axes_text: str, order_text: str, chosen_text: str, text: str) -> Groups:
    axes = [(name, int(size)) for name, size in re.findall(r"'([^']*)'=(\d+)", axes_text)]
    numbers = _iota([size for _, size in axes], None)
    order = order_text.strip(" ,")
    if order:
        iota = re.fullmatch(r"device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\)", order)
        plain = re.fullmatch(r"device_ids=\(([\d,\s]+)\)", order)
        if iota:
            numbers = _iota(_ints(iota.group(1)), _ints(iota.group(2)) if iota.group(2) else None)
        elif plain:
            numbers = _ints(plain.group(1))
        else:
            raise ProgramError(f"HLO text: cannot read the device order in {text!r}")
    # A sub-axis `'a':(pre)size` is the part of 'a' that has `pre` steps before it.
    sizes: list[int] = []
    picked: list[int] = []
    chosen = re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", chosen_text)
    if {name for name, _, _ in chosen} - {name for name, _ in axes}:
        raise ProgramError(f"HLO text: {text!r} names an axis that its mesh lacks")
    for name, size in axes:
        cuts = {1, size}
        ranges = []
        for other, pre, part in chosen:
            if other == name:
                low, high = (int(pre), int(pre) * int(part)) if pre else (1, size)
                cuts |= {low, high}
                ranges.append((low, high))
        for low, high in itertools.pairwise(sorted(cuts)):
            if any(a <= low and high <= b for a, b in ranges):
                picked.append(len(sizes))
            sizes.append(high // low)
    groups = mesh_groups(sizes, picked)
    return tuple(tuple(numbers[place] for place in group) for group in groups)


def _iota(dims: Sequence[int], order: Sequence[int] | None) -> list[int]:
    """Values 0.. reshaped to `dims`, transposed by `order`, flattened."""
    order = tuple(range(len(dims))) if order is None else tuple(order)
    strides = [math.prod(dims[axis + 1 :]) for axis in range(len(dims))]
    places = itertools.product(*(range(dims[axis]) for axis in order))
    return [
        sum(index * strides[axis] for index, axis in zip(place, order, strict=True))
        for place in places
    ]


def _ints(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word.strip()]
