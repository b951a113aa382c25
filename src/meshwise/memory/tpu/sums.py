"""Sums of gradients that XLA:TPU makes at once.

Sums over the same devices that no other sum needs are one instruction, up to a number of bytes: all
of their operands are live until the last one is there.

Source: compiled programs (libtpu 0.0.42.1); XLA all_reduce_combiner.cc.
"""

from __future__ import annotations

from dataclasses import replace

from meshwise.memory.local_program import Instructions, LocalProgram
from meshwise.units import MIB

# The largest that were seen have 119.3 and 120.0 MiB.
_MOST_BYTES = 120 * MIB


def with_joint_sums(program: LocalProgram, made: Instructions) -> Instructions:
    """Return the instructions, where sums that run at once wait for all of their operands.

    Args:
        program: The program of one device.
        made: Its instructions.
    """
    maker = {b: i for i, step in enumerate(made.steps) for b in step.defines}
    after: dict[int, set[int]] = {}
    for group in joint_sums(program):
        members = [maker[v] for v in group if v in maker]
        operands = {maker[b] for i in members for b in made.steps[i].reads if b in maker}
        for i in members:
            after[i] = operands - {i}
    if not after:
        return made
    steps = [
        step._replace(after=(*step.after, *sorted(after.get(i, ()))))
        for i, step in enumerate(made.steps)
    ]
    return replace(made, steps=tuple(steps))


def joint_sums(program: LocalProgram) -> list[list[int]]:
    """Return the sums that are one instruction, by their values; groups of one are left out."""
    values = program.values
    reaches = [False] * len(values)
    for v in range(len(values) - 1, -1, -1):
        value = values[v]
        if reaches[v] or value.sum_axes:
            for u in value.inputs:
                reaches[u] = True
    groups: list[list[int]] = []
    # For each set of axes the last group, and its bytes.
    last: dict[tuple[int, ...], tuple[int, int]] = {}
    for v, value in enumerate(values):
        if not value.sum_axes or reaches[v]:
            continue
        k, size = last.get(value.sum_axes, (-1, _MOST_BYTES))
        if size + value.num_bytes > _MOST_BYTES:
            k, size = len(groups), 0
            groups.append([])
        groups[k].append(v)
        last[value.sum_axes] = k, size + value.num_bytes
    return [group for group in groups if len(group) > 1]
