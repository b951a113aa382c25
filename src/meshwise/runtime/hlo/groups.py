"""The groups of devices among which a collective runs, from any of XLA's forms.

Devices are numbered row-major over the mesh.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import TypeAlias

from meshwise.errors import ProgramError
from meshwise.runtime.hlo.module import HloInstruction, Module

Groups: TypeAlias = tuple[tuple[int, ...], ...]
AxisGroups: TypeAlias = dict[frozenset[frozenset[int]], tuple[int, ...]]


def axis_groups(mesh_sizes: Sequence[int]) -> AxisGroups:
    """Return the axes of each set of groups that is one of mesh axes; none of them of size 1.

    Args:
        mesh_sizes: Sizes of the mesh axes, major to minor.
    """
    real = [axis for axis, size in enumerate(mesh_sizes) if size > 1]
    table: AxisGroups = {}
    for length in range(1, len(real) + 1):
        for axes in itertools.combinations(real, length):
            groups = mesh_groups(mesh_sizes, axes)
            table[frozenset(frozenset(group) for group in groups)] = axes
    return table


def mesh_groups(mesh_sizes: Sequence[int], axes: Sequence[int]) -> Groups:
    """Return the groups of devices that differ only along some axes.

    Args:
        mesh_sizes: Sizes of the mesh axes, major to minor.
        axes: Positions of the axes.
    """
    members: dict[tuple[int, ...], list[int]] = {}
    for number, place in enumerate(itertools.product(*(range(size) for size in mesh_sizes))):
        rest = tuple(index for axis, index in enumerate(place) if axis not in axes)
        members.setdefault(rest, []).append(number)
    return tuple(tuple(group) for group in members.values())


def permute_groups(
    instruction: HloInstruction, mesh_sizes: Sequence[int], known: AxisGroups
) -> tuple[Groups, tuple[int, ...] | None]:
    """Return the groups of a permute, and the least set of mesh axes along which every pair moves.

    Args:
        instruction: The permute.
        mesh_sizes: Sizes of the mesh axes, major to minor.
        known: What `axis_groups` returns for the mesh.

    Returns:
        The groups; the axes, None if the pairs are not of mesh axes.

    Raises:
        ProgramError: The instruction names no pairs.
    """
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
    return groups, known.get(frozenset(frozenset(group) for group in groups))


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


def replica_groups(
    module: Module, instruction: HloInstruction, kind: str, num_devices: int
) -> Groups:
    """Return the groups of a collective that is no permute.

    Args:
        module: Its program.
        instruction: The collective.
        kind: Its kind, see `collectives.HloCollective`.
        num_devices: Devices of the mesh.

    Raises:
        ProgramError: The groups cannot be read.
    """
    # The order of devices in a mesh follows a comma that is in no bracket.
    mesh = re.search(r"replica_groups=(@?mesh\[[^\]]*\][^{]*\{[^{}]*\})", instruction.attributes)
    text = mesh.group(1) if mesh else instruction.attribute("replica_groups") or "{}"
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
    """Return the groups that a text in one of XLA's three forms names.

    Lists `{{0,1},{2,3}}`; iota tiles `[2,4]<=[4,2]T(1,0)`; mesh axes `mesh['a'=2,'b'=4] {'b'}`.

    Args:
        text: The attribute `replica_groups`.

    Raises:
        ProgramError: The text has none of these forms.
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
    """Return values 0.. reshaped to `dims`, transposed by `order`, flattened."""
    order = tuple(range(len(dims))) if order is None else tuple(order)
    strides = [math.prod(dims[axis + 1 :]) for axis in range(len(dims))]
    places = itertools.product(*(range(dims[axis]) for axis in order))
    return [
        sum(index * strides[axis] for index, axis in zip(place, order, strict=True))
        for place in places
    ]


def _ints(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word.strip()]
