"""What other choices and more memory would cost: the same step planned again, one thing forced.

Nothing is estimated.  The best plan in which no member of a group takes what the plan chose names
the rival; its price is the difference of two whole plans, on the same mesh, for the same number of
micro-batches and with the same pins.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from meshwise.cluster.mesh import LogicalMesh
from meshwise.errors import InfeasibleError, PlanError
from meshwise.graph.graph import Operator
from meshwise.graph.layout import Layout
from meshwise.graph.loops import NONE, Strategy, enumerate_strategies
from meshwise.intra.candidates import whole_layouts
from meshwise.intra.options import OperatorPath
from meshwise.intra.shapes import strategy_layouts
from meshwise.plan.counts.contents import dense_sites, pattern
from meshwise.plan.plan import Plan
from meshwise.plan.rivals import MemoryPrice, Rival, Way
from meshwise.planner.one_mesh import Forced, plan_on
from meshwise.request.methods import Replay
from meshwise.request.pins import pinned
from meshwise.request.plan_request import PlanRequest
from meshwise.trace.step import TracedStep

# Called before each re-solve: how many are done, how many there are, what comes now.
Progress = Callable[[int, int, str], None]

LayoutChoices = Mapping[int, tuple[Layout, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Arguments or dense operators that are forced together.

    Attributes:
        what: As in `Rival`.
        chosen: What they all do in the plan.
        seconds: What they cost in a step.
        num_bytes: Bytes of the arguments.
        layouts: For arguments: every other layout that each may have.
        ways: For operators: every other strategy that each may have, with what it means.
    """

    what: str
    chosen: Way
    seconds: float
    num_bytes: int = 0
    layouts: LayoutChoices = dataclasses.field(default_factory=dict[int, tuple[Layout, ...]])
    ways: Mapping[OperatorPath, Mapping[Strategy, Way]] = dataclasses.field(
        default_factory=dict[OperatorPath, Mapping[Strategy, Way]]
    )

    @property
    def count(self) -> int:
        return len(self.layouts) + len(self.ways)

    def others(self) -> Forced:
        """Return the question in which none of them does what was chosen."""
        strategies = {path: frozenset(ways) for path, ways in self.ways.items()}
        return Forced(layouts=self.layouts, strategies=strategies)

    def all_as(self, rival: Way) -> Forced | None:
        """Return the question in which all of them do one thing; None if one of them cannot."""
        layouts = {
            i: tuple(w for w in ok if w == rival.results[0]) for i, ok in self.layouts.items()
        }
        strategies = {
            path: frozenset(s for s, way in ways.items() if way == rival)
            for path, ways in self.ways.items()
        }
        if not all(layouts.values()) or not all(strategies.values()):
            return None
        return Forced(layouts=layouts, strategies=strategies)

    def found(self, plan: Plan) -> list[Way]:
        """Return what each of them does in another plan."""
        ways = [Way(operands=(), results=(plan.decision.inputs[i],)) for i in self.layouts]
        return ways + [known[_strategy(plan, path)] for path, known in self.ways.items()]


def priced(
    step: TracedStep,
    plan: Plan,
    request: PlanRequest,
    *,
    rivals: int,
    more_bytes: int | None,
    progress: Progress | None = None,
) -> Plan:
    """Return a plan with the prices of other choices.

    Args:
        step: The step that it is for, as planned.
        plan: The plan.
        request: What was asked of it.
        rivals: For how many arguments and dense operators, the dearest first.
        more_bytes: By how much more memory per device; None leaves the question out.
        progress: Told of each re-solve.

    Raises:
        PlanError: the plan was replayed, so that nothing says what may be chosen.
    """
    if isinstance(request.method, Replay):
        raise PlanError(
            "a replayed plan has no prices: nothing says which other plans were allowed; price "
            "the step with the method that found the plan, as method=mw.IntraOp(mesh_shape="
            f"{plan.mesh.sizes})"
        )
    limit = request.memory_bytes
    memory = plan.mesh.device.memory_bytes if limit is None else limit
    groups = _groups(step, plan, request)[:rivals]
    total = len(groups) + (more_bytes is not None)
    records: list[Rival] = []
    for done, group in enumerate(groups):
        if progress is not None:
            progress(done, total, group.what)
        records.append(_rival(step, plan, request, memory, group))
    price = None
    if more_bytes is not None:
        if progress is not None:
            progress(len(groups), total, "memory")
        other = plan_on(
            step, request, plan.mesh, memory + more_bytes, offload=bool(plan.decision.in_host)
        )
        price = MemoryPrice(
            more_bytes=more_bytes,
            step_time_s=other.step_time_s,
            peak_bytes=other.peak_bytes,
            status=other.status,
        )
    return dataclasses.replace(plan, rivals=tuple(records), memory_price=price)


def _rival(step: TracedStep, plan: Plan, request: PlanRequest, memory: int, group: _Group) -> Rival:
    base = Rival(
        what=group.what,
        count=group.count,
        chosen=group.chosen,
        rival=None,
        step_time_s=None,
        status="infeasible",
    )
    offload = bool(plan.decision.in_host)
    planned = partial(plan_on, step, request, plan.mesh, memory, offload=offload)
    try:
        other = planned(group.others())
        ((rival, number),) = Counter(group.found(other)).most_common(1)
        if number < group.count:
            # They do different things there; the price asked for is that of one thing for all.
            forced = group.all_as(rival)
            if forced is None:
                return base
            other = planned(forced)
    except InfeasibleError:
        return base
    return dataclasses.replace(
        base, rival=rival, step_time_s=other.step_time_s, status=other.status
    )


def _groups(step: TracedStep, plan: Plan, request: PlanRequest) -> list[_Group]:
    """Return arguments and dense operators that could do something else, the dearest first."""
    arguments = sorted(_arguments(step, plan, request), key=lambda g: (-g.seconds, -g.num_bytes))
    operators = sorted(_operators(step, plan), key=lambda g: -g.seconds)
    mixed: list[_Group] = []
    for turn in range(max(len(arguments), len(operators))):
        mixed += [*operators[turn : turn + 1], *arguments[turn : turn + 1]]
    return mixed


def _arguments(step: TracedStep, plan: Plan, request: PlanRequest) -> list[_Group]:
    graph, mesh = step.graph, plan.mesh
    fixed = pinned(graph, request.pins, mesh).layouts
    members: dict[tuple[str, tuple[int, ...], str, Layout], list[int]] = {}
    (stage,) = plan.stages
    for i, argument in enumerate(stage.arguments):
        key = (pattern(argument.name), argument.shape, argument.dtype, argument.layout)
        members.setdefault(key, []).append(i)
    groups: list[_Group] = []
    for (name, _, _, chosen), positions in members.items():
        layouts: dict[int, tuple[Layout, ...]] = {}
        for i in positions:
            tensor = graph.tensors[graph.inputs[i]]
            allowed = fixed.get(i, whole_layouts(tensor.shape, mesh.sizes))
            layouts[i] = tuple(w for w in allowed if w != chosen)
        if all(layouts.values()):
            items = [stage.arguments[i] for i in positions]
            what = items[0].name if len(items) == 1 else name
            groups.append(
                _Group(
                    what=what,
                    chosen=Way(operands=(), results=(chosen,)),
                    seconds=sum(s for item in items for _, s in item.communication),
                    num_bytes=sum(graph.tensors[graph.inputs[i]].num_bytes for i in positions),
                    layouts=layouts,
                )
            )
    return groups


def _operators(step: TracedStep, plan: Plan) -> list[_Group]:
    (stage,) = plan.stages
    groups: list[_Group] = []
    sites = dense_sites(step.graph, plan.decision)
    for record, members in zip(stage.dense, sites, strict=True):
        chosen = Way(operands=record.operands, results=record.results)
        ways: dict[OperatorPath, Mapping[Strategy, Way]] = {}
        for site in members:
            possible = _ways(site.operator, plan.mesh)
            ways[site.path] = {s: way for s, way in possible.items() if way != chosen}
        if all(ways.values()):
            moves = sum(seconds for _, seconds in record.communication)
            groups.append(
                _Group(
                    what=record.where,
                    chosen=chosen,
                    seconds=max(record.compute_s, record.memory_s) + moves,
                    ways=ways,
                )
            )
    return groups


def _ways(op: Operator, mesh: LogicalMesh) -> dict[Strategy, Way]:
    """Return the strategies of an operator; axes of one device split nothing."""
    found: dict[Strategy, Way] = {}
    for strategy in enumerate_strategies(op.rule, mesh.sizes):
        if any(size == 1 and c != NONE for size, c in zip(mesh.sizes, strategy, strict=True)):
            continue
        layouts = strategy_layouts(op, strategy, mesh.sizes)
        if layouts is not None:
            found[strategy] = Way(operands=layouts[0], results=layouts[1])
    return found


def _strategy(plan: Plan, path: OperatorPath) -> Strategy:
    decision = plan.decision
    for i, p in zip(path[:-1:2], path[1:-1:2], strict=True):
        decision = decision.operators[i].bodies[p]
    return decision.operators[path[-1]].strategy
