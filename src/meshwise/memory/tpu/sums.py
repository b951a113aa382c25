"""Sums of gradients that XLA:TPU makes at once.

Source: compiled programs (libtpu 0.0.42.1): sums that no other sum needs are combined up to 120
MiB, in place; XLA all_reduce_combiner.cc.
"""

from __future__ import annotations

from dataclasses import replace

from meshwise.memory.local_program import Instructions, LocalProgram

_MOST_BYTES = 120 * 2**20


def with_joint_sums(program: LocalProgram, made: Instructions) -> Instructions:
    """Return the instructions, where sums that run at once wait for all of their operands."""
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
    """Return the sums that are one instruction, by their values."""
    values = program.values
    reaches = [False] * len(values)
    for v in range(len(values) - 1, -1, -1):
        value = values[v]
        if reaches[v] or value.sum_axes:
            for u in value.inputs:
                reaches[u] = True
    groups: list[list[int]] = []
    open_: dict[tuple[int, ...], tuple[list[int], int]] = {}
    for v, value in enumerate(values):
        if not value.sum_axes or reaches[v]:
            continue
        group, size = open_.get(value.sum_axes, ([], 0))
        if not group or size + value.num_bytes > _MOST_BYTES:
            group, size = [], 0
            groups.append(group)
        group.append(v)
        open_[value.sum_axes] = group, size + value.num_bytes
    return [group for group in groups if len(group) > 1]
