"""Sums over devices that XLA:TPU joins: none is made before the last of its operands is there.

Only sums that lead to no product are joined, as those of the gradients of weights.  They are taken
in the order of the results that they lead to, up to 120 MiB.  The compiler
leaves reduce-scatters of a v5e apart, but runs them late, one after the other: gradients wait as if
these were joined, and they are joined here, too.

Source: compiled programs (libtpu 0.0.42.1): all-reduces with 54 operands, of up to 120.0 MiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwise.memory.local_program import Instructions, LocalInstruction, LocalValue
from meshwise.memory.order import needed_by
from meshwise.units import MIB

_MOST_BYTES = 120 * MIB


def with_joint_sums(program: Instructions, values: Sequence[LocalValue]) -> Instructions:
    """Return the program with sums in common; its steps stand in no particular order.

    Args:
        program: The instructions.
        values: The values of the program.
    """
    maker = {b: i for i, step in enumerate(program.steps) for b in step.defines}
    before = [
        [maker[b] for b in step.reads if b in maker] + list(step.after) for step in program.steps
    ]
    made = [values[step.value] for step in program.steps]
    needed = needed_by((i for i, v in enumerate(made) if v.is_product or v.is_summed), before)
    groups: list[list[int]] = []
    size = _MOST_BYTES
    for i in _by_result(program, before, maker):
        value = made[i]
        if i in needed or not value.is_summed:
            continue
        size += value.num_bytes
        if size > _MOST_BYTES:
            groups.append([])
            size = value.num_bytes
        groups[-1].append(i)
    return _joined(program, [group for group in groups if len(group) > 1])


def _by_result(
    program: Instructions, before: Sequence[Sequence[int]], maker: dict[int, int]
) -> list[int]:
    """Return the instructions in the order of a walk depth first from the results."""
    done, order = [False] * len(before), list[int]()
    for b in program.results:
        stack = [(maker[b], False)] if b in maker else []
        while stack:
            i, is_ready = stack.pop()
            if is_ready:
                order.append(i)
            elif not done[i]:
                done[i] = True
                stack.append((i, True))
                stack += [(j, False) for j in reversed(before[i])]
    return order


def _joined(program: Instructions, groups: Sequence[Sequence[int]]) -> Instructions:
    """Return the program in which each group is one instruction, at the place of its last one."""
    home = {i: group for group in groups for i in group}
    place: dict[int, int] = {}
    kept: list[list[int]] = []
    for i in range(len(program.steps)):
        group = home.get(i, [i])
        if i == max(group):
            place |= dict.fromkeys(group, len(kept))
            kept.append(sorted(group))

    def joint(group: Sequence[int]) -> LocalInstruction:
        parts = [program.steps[i] for i in group]
        after = dict.fromkeys(place[j] for part in parts for j in part.after)
        return parts[-1]._replace(
            reads=tuple(dict.fromkeys(b for part in parts for b in part.reads)),
            defines=tuple(b for part in parts for b in part.defines),
            # What is added up lies where the terms lay.
            may_reuse=tuple(dict.fromkeys(b for part in parts for b in part.reads)),
            after=tuple(after),
        )

    steps = tuple(
        joint(group)
        if len(group) > 1
        else program.steps[group[0]]._replace(
            after=tuple(dict.fromkeys(place[j] for j in program.steps[group[0]].after))
        )
        for group in kept
    )
    return replace(program, steps=steps)
