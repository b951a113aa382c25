"""The order in which XLA runs the instructions of a program.

Source: XLA hlo_memory_scheduler.cc (DFSMemoryScheduler).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from meshwise.memory.local_program import Instructions, LocalValue

_Rank = tuple[int, int, int]

# XLA caps the number of further readers by that of its instructions; it has constants and parts of
# tuples that are no values here.  Fitted to 89 programs (docs/measurements/fidelity.md).
_INSTRUCTIONS_PER_VALUE = 1.5


class _Step(NamedTuple):
    """What ranks depend on.

    Attributes:
        operands: Instructions whose buffers it reads.
        num_readers: Instructions that read its buffers.
        num_bytes: Bytes of its buffers.
        num_paths: Over how many paths it reaches each operand.
    """

    operands: Sequence[int]
    num_readers: int
    num_bytes: int
    num_paths: int


class Dependences(NamedTuple):
    """What must run before what.

    Attributes:
        operands: For each instruction those whose buffers it reads.
        before: Those, and others that must run before it.
        results: Instructions whose buffers leave the program.
    """

    operands: list[list[int]]
    before: list[list[int]]
    results: list[int]


def dependences(program: Instructions) -> Dependences:
    """Return what must run before what.

    Args:
        program: The instructions.
    """
    maker = {b: i for i, step in enumerate(program.steps) for b in step.defines}
    operands = [
        [j for j in dict.fromkeys(maker[b] for b in step.reads if b in maker) if j != i]
        for i, step in enumerate(program.steps)
    ]
    before = [
        [j for j in dict.fromkeys((*reads, *step.after)) if j != i]
        for i, (reads, step) in enumerate(zip(operands, program.steps, strict=True))
    ]
    results = list(dict.fromkeys(maker[b] for b in program.results if b in maker))
    return Dependences(operands, before, results)


def needed_by(instructions: Iterable[int], before: Sequence[Sequence[int]]) -> frozenset[int]:
    """Return the instructions that some others need, directly or not.

    Args:
        instructions: The others; one of them is returned only if another one needs it.
        before: For each instruction those that must run before it.
    """
    found: set[int] = set()
    todo = list(instructions)
    while todo:
        for j in before[todo.pop()]:
            if j not in found:
                found.add(j)
                todo.append(j)
    return frozenset(found)


def depth_first_order(program: Instructions, values: Sequence[LocalValue]) -> list[int]:
    """Return positions of the instructions as XLA's depth-first scheduler runs them.

    It walks from the results; of the operands of an instruction it visits first the one below
    which values have most further readers, then the one with most bytes below it.  What is below
    is summed over operands, so shared values count often.

    Args:
        program: The instructions.
        values: The values of the program.
    """
    graph = dependences(program)
    operands, before, results = graph.operands, graph.before, graph.results
    num_readers = [0] * len(program.steps)
    for reads in (*operands, results):
        for j in reads:
            num_readers[j] += 1
    own = [sum(values[b].num_bytes for b in step.defines) for step in program.steps]
    num_paths = [values[step.value].num_paths for step in program.steps]
    most_readers = int(_INSTRUCTIONS_PER_VALUE * program.num_values)
    first = post_order(results, operands)
    rank = _ranks(
        [_Step(*parts) for parts in zip(operands, num_readers, own, num_paths, strict=True)],
        first,
        most_readers,
    )
    return post_order(sorted(results, key=rank.__getitem__), before, rank)


def _ranks(steps: Sequence[_Step], order: Sequence[int], most_readers: int) -> list[_Rank]:
    """Return ranks: first what has most further readers below, then most bytes below.

    Readers are capped by a number, bytes by all that was made up to here, so deep down the age of
    instructions decides: XLA made fusions last, from the results backwards.
    """
    extra, total = [0] * len(steps), [0] * len(steps)
    all_bytes = 0
    for i in order:
        step = steps[i]
        all_bytes += step.num_bytes
        readers = step.num_paths * sum(extra[j] for j in step.operands)
        below = step.num_paths * sum(total[j] for j in step.operands)
        extra[i] = min(max(step.num_readers - 1, 0) + readers, most_readers)
        total[i] = min(step.num_bytes + below, all_bytes)
    return [(-extra[i], -total[i], -i) for i in range(len(steps))]


def post_order(
    results: Sequence[int], before: Sequence[Sequence[int]], rank: Sequence[_Rank] | None = None
) -> list[int]:
    """Return a walk depth first from each result: operands as they stand, or lowest rank first.

    Args:
        results: Where it begins.
        before: For each instruction those that must run before it; of two that wait for one
            another, which only a copy could serve, the first that is met runs last.
        rank: Of each instruction.
    """
    done, is_open = [False] * len(before), [False] * len(before)
    order: list[int] = []
    for end in (*results, *range(len(before))):
        stack = [end]
        while stack:
            i = stack[-1]
            if done[i]:
                stack.pop()
                continue
            is_open[i] = True
            # What is open already waits for this one: the two could only take turns by a copy.
            waiting = [j for j in before[i] if not done[j] and not is_open[j]]
            if not waiting:
                done[i] = True
                order.append(i)
                stack.pop()
            elif rank is None:
                stack.extend(reversed(waiting))
            else:
                stack.extend(sorted(waiting, key=rank.__getitem__, reverse=True))
    return order
