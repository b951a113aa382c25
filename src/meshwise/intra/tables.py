"""What each choice of a block costs, which layouts it wants and which it leaves.

Equal blocks (same operators on same shapes, wired equally) share one table.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meshwise.cluster.collectives import collective_time_s
from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Operator, Tensor
from meshwise.graph.layout import SUM, Layout, used_axes
from meshwise.graph.loops import NONE, Strategy, enumerate_strategies, passing
from meshwise.graph.sends import Send, sends
from meshwise.intra.block_shapes import BlockShapes
from meshwise.intra.options import ALPA, AllowedChoices
from meshwise.intra.shapes import (
    BlockShape,
    Member,
    Table,
    Walk,
    Ways,
    cluster_bytes,
    moved_bytes,
    strategy_layouts,
)
from meshwise.memory.targets import memory_model_of
from meshwise.plan.counts.flop import device_share
from meshwise.plan.counts.own_traffic import own_traffic_bytes
from meshwise.resharding.within import cost_matrix


class Evaluator:
    """Computes tables on one mesh; remembers them.

    Attributes:
        forbid: Kinds of collectives that may not be used.
        hides_rings: Whether the target's programs compute while blocks go round.
        shapes: Of blocks; evaluators of other meshes may have the same.
        tables: By the key of a block's shape, and what is allowed there.
        layout_keys: Numbers of tuples of layouts.
        matrices: Costs of resharding by tensor, trips and numbers of layouts.
    """

    def __init__(
        self,
        mesh: LogicalMesh,
        objective: str,
        forbid: frozenset[str],
        shapes: BlockShapes | None = None,
    ) -> None:
        self.mesh = mesh
        self.shapes = shapes or BlockShapes()
        self.sizes = mesh.sizes
        self.objective = objective
        self.forbid = forbid
        self.hides_rings = memory_model_of(mesh.device).hides_rings
        self.tables: dict[object, Table] = {}
        self.layout_keys: dict[object, int] = {}
        self.matrices: dict[object, NDArray[np.float64]] = {}
        self._layouts: dict[tuple[int, Strategy], Ways | None] = {}
        self._feasible: dict[int, tuple[Strategy, ...]] = {}
        self._reshard: dict[tuple[tuple[int, ...], int, int, Layout, Layout], float] = {}

    def reshard_s(self, tensor: Tensor, source: Layout, target: Layout) -> float:
        """Seconds from one layout to another."""
        if source == target or tensor.generated:
            return 0.0
        key = (tensor.shape, tensor.itemsize, tensor.sharers, source, target)
        if key not in self._reshard:
            matrix = cost_matrix(
                tensor.shape,
                tensor.itemsize,
                [source],
                [target],
                self.mesh,
                forbid=self.forbid,
                sharers=tensor.sharers,
            )
            self._reshard[key] = float(matrix[0, 0])
        return self._reshard[key]

    def layouts(self, op: Operator, strategy: Strategy) -> Ways | None:
        """`strategy_layouts`, remembered by rule."""
        key = (self.shapes.rule_id(op.rule), strategy)
        if key not in self._layouts:
            self._layouts[key] = strategy_layouts(op, strategy, self.sizes)
        return self._layouts[key]

    def _strategies(self, op: Operator) -> tuple[Strategy, ...]:
        """`enumerate_strategies`, remembered by rule."""
        key = self.shapes.rule_id(op.rule)
        if key not in self._feasible:
            self._feasible[key] = tuple(enumerate_strategies(op.rule, self.sizes))
        return self._feasible[key]

    def operator_s(self, op: Operator, strategy: Strategy, byte_count: float, dtype: str) -> float:
        """Seconds of one operator on one device."""
        if self.objective == ALPA:
            return 0.0
        flop = op.flop * device_share(op, strategy, self.sizes)
        device = self.mesh.device
        return max(device.dense_s(flop, dtype), byte_count / device.memory_bytes_per_s)

    def edges_s(self, member: Member, strategy: Strategy, tensors: Sequence[Tensor]) -> float:
        """Seconds in which a member of a block with these locals exchanges edges and blocks."""
        rule = member.op.rule
        if not rule.halos and rule.ring is None and rule.dispatch is None:
            return 0.0
        found = self._sends(member, strategy, tensors)
        if any(send.kind in self.forbid for send in found):
            return math.inf
        return sum(send.times * self._send_s(send) for send in found)

    def alone_s(self, shape: BlockShape, strategy: Strategy, ways: Ways) -> float:
        """Seconds of the only operator of a block, with all that it sends.

        What goes round is on its way during computation, where the target hides it.
        """
        member, tensors = shape.members[0], shape.locals
        op = member.op
        moved = moved_bytes(shape, member, *ways, self.sizes)
        operands = [tensors[x] for x in member.inputs]
        results = [tensors[x] for x in member.outputs]
        own = own_traffic_bytes(op, strategy, self.sizes, operands, results)
        dtype = tensors[(*member.inputs, *member.outputs)[0]].dtype
        computed_s = self.operator_s(op, strategy, moved + own, dtype)
        sent_s = self.edges_s(member, strategy, tensors)
        if not self.hides_rings or op.rule.ring is None or not math.isfinite(sent_s):
            return computed_s + sent_s
        return computed_s + sent_s - self._hidden_s(member, strategy, tensors, computed_s)

    def _hidden_s(
        self, member: Member, strategy: Strategy, tensors: Sequence[Tensor], computed_s: float
    ) -> float:
        """Seconds of a ring that pass while its operator computes.

        Of the two that go round at once, operands and results, one is on its way at a time; no
        block of results is where the first turn begins and where the last one ends.
        """
        found = [x for x in self._sends(member, strategy, tensors) if x.in_turns]
        if not found:
            return 0.0
        count = found[0].group_size
        most_s = max((2 * (count - 1) - send.times) * self._send_s(send) for send in found)
        return min(most_s, computed_s * (1 - 1 / count))

    def _sends(
        self, member: Member, strategy: Strategy, tensors: Sequence[Tensor]
    ) -> tuple[Send, ...]:
        operands = [tensors[x] for x in member.inputs]
        results = [tensors[x] for x in member.outputs]
        return sends(member.op.rule, strategy, self.sizes, operands, results)

    def _send_s(self, send: Send) -> float:
        return collective_time_s(send.kind, send.axes, send.num_bytes, self.mesh)

    # -- one operator alone -------------------------------------------------------------------

    def _worth(self, op: Operator, strategy: Strategy, shape: BlockShape) -> bool:
        """Drop strategies that no plan needs."""
        member = shape.members[0]
        sizes = self.sizes
        for axis, choice in enumerate(strategy):
            if sizes[axis] == 1:
                if choice != NONE:
                    return False
                continue
            if op.heavy and self.objective == ALPA and choice < 0:
                return False
            if choice <= -2 and op.heavy:
                # To reduce after the product pays only if its result is the smaller tensor.
                inside = sum(
                    shape.locals[member.inputs[k]].num_bytes for k in op.rule.linear[-2 - choice]
                )
                if shape.locals[member.outputs[0]].num_bytes >= inside:
                    return False
        return True

    def single(
        self,
        shape: BlockShape,
        allowed: AllowedChoices | None,
        only: frozenset[Strategy] | None = None,
    ) -> Table:
        """Table of a block of one operator.

        Args:
            shape: The block.
            allowed: Choices of each axis; a rule that leaves no strategy (a product too small for
                the mesh) is waived.
            only: Strategies that a user or a question allows; never waived.
        """
        member = shape.members[0]
        op = member.op
        possible = [s for s in self._strategies(op) if only is None or s in only]
        options = [
            s
            for s in possible
            if allowed is None
            or all(ok is None or c in ok for ok, c in zip(allowed, s, strict=True))
        ] or possible
        options = [s for s in options if self._worth(op, s, shape)] or options
        strategies: list[tuple[Strategy, ...]] = []
        ways: list[tuple[Ways, ...]] = []
        costs: list[float] = []
        wants: dict[int, list[tuple[Layout, ...]]] = {x: [] for x in sorted(shape.outer)}
        leaves: dict[int, list[Layout]] = {x: [] for x in member.outputs}
        for strategy in options:
            found = self.layouts(op, strategy)
            if found is None:
                continue
            operands, results = found
            seconds = self.alone_s(shape, strategy, found)
            if not math.isfinite(seconds):
                continue
            strategies.append((strategy,))
            ways.append((found,))
            costs.append(seconds)
            for x in wants:
                mine = [w for k, w in zip(member.inputs, operands, strict=True) if k == x]
                wants[x].append(tuple(dict.fromkeys(mine)))
            for x, layout in zip(member.outputs, results, strict=True):
                leaves[x].append(layout)
        return Table(
            strategies=tuple(strategies),
            ways=tuple(ways),
            cost_s=np.array(costs),
            wants={x: tuple(w) for x, w in wants.items()},
            leaves={x: tuple(w) for x, w in leaves.items()},
        )

    # -- a cluster ----------------------------------------------------------------------------

    def cluster(self, shape: BlockShape) -> Table:
        """Table of a cluster: one choice maps each mesh axis to a class of loops or to none."""
        runs: list[Walk] = []
        wants: dict[int, list[tuple[Layout, ...]]] = {x: [] for x in sorted(shape.outer)}
        leaves: dict[int, list[Layout]] = {x: [] for x in sorted(shape.visible)}
        options = [
            (NONE,) if size == 1 else (NONE, *range(shape.block.num_classes)) for size in self.sizes
        ]
        for choice in itertools.product(*options):
            for run in self._ways(shape, choice):
                runs.append(run)
                for x, layouts in wants.items():
                    layouts.append(tuple(run.wants.get(x, ())))
                for x, layouts in leaves.items():
                    layouts.append(run.reduced.get(x, run.made[x]))
        return Table(
            strategies=tuple(run.strategies for run in runs),
            ways=tuple(tuple(run.ways) for run in runs),
            cost_s=np.array([run.cost_s for run in runs]),
            wants={x: tuple(w) for x, w in wants.items()},
            leaves={x: tuple(w) for x, w in leaves.items()},
            moves=tuple(tuple(run.moves) for run in runs),
        )

    def _ways(self, shape: BlockShape, choice: tuple[int, ...]) -> list[Walk]:
        """A choice with partial sums reduced as late as may be, and as early.

        The mean of a batch norm has several users: passed on to each, it is reduced for each.
        """
        late = self.walk(shape, choice)
        if late is None or all(c > -2 for strategy in late.strategies for c in strategy):
            return [] if late is None else [late]
        early = self.walk(shape, choice, may_pass=False)
        return [late] if early is None else [late, early]

    def walk(
        self, shape: BlockShape, choice: tuple[int, ...], *, may_pass: bool = True
    ) -> Walk | None:
        """Derive the strategies of all members from one choice of a cluster.

        Args:
            shape: The cluster.
            choice: For each axis a class of loops, or NONE.
            may_pass: Whether linear members let partial sums pass.
        """
        made: dict[int, Layout] = {}
        chosen: list[Strategy] = []
        ways: list[Ways] = []
        for place, member in enumerate(shape.members):
            strategy = self._member_strategy(shape, place, choice, made if may_pass else {})
            found = self.layouts(member.op, strategy)
            if found is None:
                return None
            chosen.append(strategy)
            ways.append(found)
            made.update(zip(member.outputs, found[1], strict=True))
        return self._account(shape, tuple(chosen), ways)

    def _member_strategy(
        self, shape: BlockShape, place: int, choice: tuple[int, ...], made: dict[int, Layout]
    ) -> Strategy:
        member, row = shape.members[place], shape.block.classes[place]
        strategy: list[int] = []
        for axis, wanted in enumerate(choice):
            if wanted >= 0 and wanted in row:
                strategy.append(row.index(wanted))
                continue
            strategy.append(self._pass(shape, member, axis, made))
        if any(c <= -2 for c in strategy) and any(
            c >= 0 and member.op.rule.loops[c].kind not in ("parallel", SUM) for c in strategy
        ):
            strategy = [c if c >= 0 else NONE for c in strategy]
        return tuple(strategy)

    def _pass(self, shape: BlockShape, member: Member, axis: int, made: dict[int, Layout]) -> int:
        """Let a partial sum pass if that does not make it larger."""
        partial = [
            k
            for k, x in enumerate(member.inputs)
            if x in made and axis in made[x].partial and made[x].monoid == SUM
        ]
        if not partial:
            return NONE
        before = max(shape.locals[member.inputs[k]].num_bytes for k in partial)
        if sum(shape.locals[x].num_bytes for x in member.outputs) > before:
            return NONE
        for number, group in enumerate(member.op.rule.linear):
            if any(k in partial for k in group) and self._may_pass(
                shape, member, axis, made, group, partial
            ):
                return passing(number)
        return NONE

    def _may_pass(
        self,
        shape: BlockShape,
        member: Member,
        axis: int,
        made: dict[int, Layout],
        group: tuple[int, ...],
        partial: list[int],
    ) -> bool:
        """Whether the partial operands of one linear group can go through along an axis.

        Others of the group must be partial too, or whole along the axis: then they are masked
        for free.  Operands outside of the group must not use the axis.
        """
        for k, x in enumerate(member.inputs):
            if x in made:
                if axis in used_axes(made[x]) and not (k in group and k in partial):
                    return False
            elif k in group and x in shape.outer:
                return False
        return True

    def account(self, shape: BlockShape, chosen: tuple[Strategy, ...]) -> Walk | None:
        """Costs and layouts of a cluster whose members run with the strategies `chosen`."""
        ways: list[Ways] = []
        for member, strategy in zip(shape.members, chosen, strict=True):
            found = self.layouts(member.op, strategy)
            if found is None:
                return None
            ways.append(found)
        return self._account(shape, chosen, ways)

    def _account(
        self, shape: BlockShape, chosen: tuple[Strategy, ...], ways: list[Ways]
    ) -> Walk | None:
        walk = Walk(strategies=chosen, ways=ways)
        seen: set[tuple[int, Layout]] = set()
        for member, (operands, results) in zip(shape.members, ways, strict=True):
            for x, layout in zip(member.inputs, operands, strict=True):
                if x in walk.made:
                    if layout == walk.made[x] or (x, layout) in seen:
                        continue
                    seen.add((x, layout))
                    walk.inside(x, layout)
                elif x in shape.outer:
                    wanted = walk.wants.setdefault(x, [])
                    if layout not in wanted:
                        wanted.append(layout)
            walk.made.update(zip(member.outputs, results, strict=True))
        walk.cost_s = sum(
            self.reshard_s(shape.locals[x], source, target) for x, source, target in walk.moves
        )
        walk.cost_s += self.cluster_edges_s(shape, chosen)
        if not math.isfinite(walk.cost_s):
            return None
        walk.cost_s += self.fused_s(shape, walk)
        return walk

    def cluster_edges_s(self, shape: BlockShape, chosen: tuple[Strategy, ...]) -> float:
        """Seconds that the members of a cluster take to exchange edges."""
        return sum(
            self.edges_s(m, strategy, shape.locals)
            for m, strategy in zip(shape.members, chosen, strict=True)
        )

    def fused_s(self, shape: BlockShape, walk: Walk) -> float:
        """Seconds of a cluster without its collectives: it runs as if fused."""
        if self.objective == ALPA:
            return 0.0
        device = self.mesh.device
        flop_s = 0.0
        for member, strategy in zip(shape.members, walk.strategies, strict=True):
            if not member.op.flop:
                continue
            dtype = shape.locals[(*member.inputs, *member.outputs)[0]].dtype
            share = device_share(member.op, strategy, self.sizes)
            flop_s += device.dense_s(member.op.flop * share, dtype)
        return max(flop_s, cluster_bytes(shape, walk, self.sizes) / device.memory_bytes_per_s)
