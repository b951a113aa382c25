"""Loops and dims of `ragged_dot_general`: rows in groups, each group with a matrix of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwise.graph.layout import SUM
from meshwise.graph.loops import LoopRule
from meshwise.graph.sent import Dispatch
from meshwise.rules.loop_list import LoopList
from meshwise.rules.primitive import Equation

# Some dims of an operand.
Run = tuple[int, ...]


def ragged_dot_rule(eqn: Equation) -> LoopRule:
    """Return loops: batch, free dims of the left, of the right, contracted, groups, dispatch."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers.dot_dimension_numbers
    (ragged,) = numbers.lhs_ragged_dimensions
    lhs, rhs, sizes = (aval.shape for aval in eqn.in_avals)
    loops = LoopList()
    left: list[tuple[int, ...]] = [()] * len(lhs)
    right: list[tuple[int, ...]] = [()] * len(rhs)
    result: list[tuple[int, ...]] = []
    for i, j in zip(lhs_batch, rhs_batch, strict=True):
        # A ragged batch dim stays whole: groups then change nothing (`is_of_batch`).
        left[i] = right[j] = () if i == ragged else loops.add(lhs[i])
        result.append(left[i])
    lhs_free = [i for i in range(len(lhs)) if i not in (*lhs_batch, *lhs_contract)]
    taken = (*rhs_batch, *rhs_contract, *numbers.rhs_group_dimensions)
    for i in lhs_free:
        left[i] = loops.add(lhs[i], block=i == ragged)
        result.append(left[i])
    for j in range(len(rhs)):
        if j not in taken:
            right[j] = loops.add(rhs[j])
            result.append(right[j])
    for i, j in zip(lhs_contract, rhs_contract, strict=True):
        left[i] = right[j] = loops.add(lhs[i], SUM, block=i == ragged)
    whole = ""
    if ragged in lhs_batch:
        whole = "the groups"
    elif ragged in lhs_contract:
        result.insert(0, loops.add(sizes[-1], block=True))
    else:
        (group,) = numbers.rhs_group_dimensions
        right[group] = loops.add(sizes[-1], SUM, block=True)
    kind = next(dims for dims in (lhs_batch, lhs_contract, lhs_free) if ragged in dims)
    outer = kind[: list(kind).index(ragged)]
    with_sizes = () if len(sizes) == 1 else outer if ragged in lhs_batch else (*lhs_batch, *outer)
    dispatch = None
    if not (lhs_batch or whole):
        dispatch = _dispatch(eqn, left, right, result, loops)
    return LoopRule(
        loops.done(),
        (tuple(left), tuple(right), (*(left[i] for i in with_sizes), ())),
        (tuple(result),),
        linear=((0,), (1,)),
        whole=whole,
        dispatch=dispatch,
    )


def _dispatch(
    eqn: Equation,
    left: Sequence[tuple[int, ...]],
    right: Sequence[tuple[int, ...]],
    result: Sequence[tuple[int, ...]],
    loops: LoopList,
) -> Dispatch | None:
    """Return how rows may go to their groups, along the outermost dim of the rows.

    Args:
        eqn: An equation without a batch.
        left: The loop of each dim of the left operand.
        right: Likewise.
        result: Likewise.
        loops: The loops; that of the dispatch is added.
    """
    dims = RaggedDims.of(eqn)
    groups = right[dims.groups[0]] if dims.groups else result[0]
    outer = next((i for i in dims.rows[0][: dims.num_outer + 1] if left[i]), None)
    if outer is None or not groups:
        return None
    (loop,) = loops.add(eqn.in_avals[0].shape[outer], block=True)
    (rows,) = left[outer]
    if dims.groups:
        of_result = tuple(range(len(dims.rows[0])))
        return Dispatch(loop, rows, groups[0], (0,), (0,), (dims.rows[0], of_result))
    return Dispatch(loop, rows, groups[0], (0, 1), (), dims.rows)


def is_of_batch(eqn: Equation) -> bool:
    """Return whether the ragged dim is a batch dim: groups then change nothing.

    Args:
        eqn: The equation.
    """
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    _, (batch, _) = numbers.dot_dimension_numbers
    return numbers.lhs_ragged_dimensions[0] in batch


@dataclass(frozen=True, slots=True)
class RaggedDims:
    """Runs of dims of both operands; dims that both have are in the same order.

    Attributes:
        batch: Dims of the batch, of the left operand and of the right one.
        rows: Outer dims of the left operand, the ragged one, and those beside it; of the right
            operand too, where rows are contracted.
        contracted: Contracted dims that are not in `rows`.
        free: Dims of one operand alone that are not in `rows`.
        groups: The dim of the groups, of the right operand, if it has them.
        num_outer: Number of dims in `rows` before the ragged one.
    """

    batch: tuple[Run, Run]
    rows: tuple[Run, Run]
    contracted: tuple[Run, Run]
    free: tuple[Run, Run]
    groups: Run
    num_outer: int

    @staticmethod
    def of(eqn: Equation) -> RaggedDims:
        """Return the dims of the operands of an equation whose ragged dim is not in the batch.

        Args:
            eqn: The equation.
        """
        numbers = eqn.params["ragged_dot_dimension_numbers"]
        left, right = (aval.ndim for aval in eqn.in_avals[:2])
        contracted, batch = (
            (tuple(of_left), tuple(of_right)) for of_left, of_right in numbers.dot_dimension_numbers
        )
        (ragged,) = numbers.lhs_ragged_dimensions
        groups = tuple(numbers.rhs_group_dimensions)
        free = (
            _others(left, (*batch[0], *contracted[0])),
            _others(right, (*batch[1], *contracted[1], *groups)),
        )
        none: tuple[Run, Run] = (), ()
        if ragged in contracted[0]:
            outer = contracted[0].index(ragged)
            return RaggedDims(batch, contracted, none, free, groups, outer)
        outer = free[0].index(ragged)
        return RaggedDims(batch, (free[0], ()), contracted, ((), free[1]), groups, outer)

    @property
    def is_batch_first(self) -> bool:
        """Whether a matrix operand has batch dims before the group dim; no if they are results."""
        return bool(self.groups) and min(self.batch[1], default=self.groups[0]) < self.groups[0]

    @property
    def is_turned(self) -> bool:
        """Whether the contracted dims of a matrix lie behind the others."""
        return max(self.contracted[1], default=0) > max(self.free[1], default=0)

    @property
    def left(self) -> tuple[Run, ...]:
        """The left operand as the products take it: its rows, and what a row has."""
        return self.batch[0] + self.rows[0], self.contracted[0] + self.free[0]

    @property
    def right(self) -> tuple[Run, ...]:
        """The right operand likewise: its rows, or matrices as they lie in memory if they can."""
        if not self.groups:
            return self.batch[1] + self.rows[1], self.free[1]
        outer, inner = self.groups, self.batch[1]
        if self.is_batch_first:
            outer, inner = inner, outer
        first, second = self.contracted[1], self.free[1]
        if self.is_turned:
            first, second = second, first
        return outer + inner, first, second

    def of_groups(self, rule: LoopRule) -> tuple[int, ...]:
        """Return the loop of the groups; () if there is one group at most.

        Args:
            rule: The loops of the operator.
        """
        return rule.operands[1][self.groups[0]] if self.groups else rule.results[0][0]


def _others(rank: int, taken: Run) -> Run:
    return tuple(i for i in range(rank) if i not in taken)
