"""Which equations run before, inside and after the loop over micro-batches.

A value is, along the micro-batch axis, whole, split on a dim, partial, or known only after the
loop; the same factor rules that split operators in space say how each equation carries that on.
A small reduction of the batch that the inside needs is hoisted before the loop.  What does not
separate is a `TraceError` that names the operator, or, on request, a statistic of each
micro-batch alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from meshwise.errors import TraceError
from meshwise.graph.loops import NONE, LoopRule, divides, passing
from meshwise.jax_compat.source_lines import source_line
from meshwise.rules.table import primitive_rule
from meshwise.trace.program import Node, Program
from meshwise.trace.time.agree import NotSeparableError, fits
from meshwise.trace.time.bodies import analyze_bodies
from meshwise.trace.time.row_blocks import of_row_blocks
from meshwise.trace.time.state import (
    AFTER,
    AFTER_LOOP,
    BEFORE_LOOP,
    INSIDE_LOOP,
    LOCAL,
    PARTIAL,
    SPLIT,
    WHOLE,
    A,
    Batch,
    BlockTime,
    Crossed,
    L,
    NodeTime,
    R,
    TimeState,
    operand_states,
    parts_of,
    result_states,
    split,
)
from meshwise.trace.time.terms import readers_of, runs_on_terms


@dataclass(frozen=True, slots=True)
class _Forced:
    """What earlier attempts have found out.

    Attributes:
        before: Equations (positions) that are hoisted before the loop.
        local: For each program (by `id`) the values that are statistics of a micro-batch.
    """

    before: frozenset[int] = frozenset()
    local: frozenset[tuple[int, int]] = frozenset()


class _RetryError(Exception):
    """An attempt found that more must be hoisted or made local."""

    def __init__(self, forced: _Forced) -> None:
        super().__init__()
        self.forced = forced


def analyze(
    program: Program,
    batch_dims: Mapping[int, int],
    batch: Batch,
    *,
    local_statistics: bool,
    crossed: Crossed | None = None,
) -> BlockTime:
    """Analyse a step, or a part of one.

    Args:
        program: The flat step at full batch.
        batch_dims: Batch dim of each batch argument, by position.
        batch: How the batch is cut.
        local_statistics: Let what does not separate become a statistic of each micro-batch.
        crossed: What a part of a step shares with its other parts; None: a whole step.

    Raises:
        TraceError: the step does not separate into micro-batches.
    """
    shared = crossed or Crossed()
    given = {i: split(dim, shared.parts.get(i, batch.groups)) for i, dim in batch_dims.items()}
    given |= dict.fromkeys(shared.late, A) | dict.fromkeys(shared.local, L)
    inputs = tuple(given.get(i, R) for i in range(len(program.inputs)))
    not_before = {program.inputs[i] for i in shared.streamed | shared.late | shared.local}
    top = _Analysis(program, batch, _Forced(), local_statistics, not_before=not_before)
    while True:
        try:
            block = top.run(inputs)
            top.localize_results([program.outputs[i] for i in shared.local_results])
            if top.forced.local and not program.results and crossed is None:
                raise _NoLossError(_NO_LOSS)
            return block
        except _RetryError as retry:
            top.go_back(retry.forced)
        except NotSeparableError as error:
            helps = not local_statistics and _separates_locally(program, batch_dims, batch, crossed)
            raise _refusal(error.node, error.reason, batch, local_helps=helps) from None


class _NoLossError(TraceError):
    """Statistics of each micro-batch would do, but no loss is marked where they are averaged."""


_NO_LOSS = (
    'microbatch_statistics="local" averages what leaves the loss over the micro-batches, and this '
    "step does not say where that is: write meshwise.value_and_grad (or meshwise.grad) in place of "
    "jax.value_and_grad"
)


def _separates_locally(
    program: Program, batch_dims: Mapping[int, int], batch: Batch, crossed: Crossed | None
) -> bool:
    try:
        analyze(program, batch_dims, batch, local_statistics=True, crossed=crossed)
    except _NoLossError:
        return True
    except TraceError:
        return False
    return True


def _refusal(node: Node, reason: str, batch: Batch, *, local_helps: bool) -> TraceError:
    remedy = "use num_microbatches=1, or rewrite the loss as sums over the batch"
    if local_helps:
        remedy = (
            "use num_microbatches=1, rewrite the loss as sums over the batch, or accept "
            'microbatch_statistics="local" (statistics of each micro-batch, results averaged)'
        )
    if batch.size == 1:
        remedy = (
            "the batch has one row, so its dim cannot be told from other dims of size 1; pass two "
            "rows or more, or plan without stages (method=mw.IntraOp())"
        )
    whole = _why_whole(node, batch)
    return TraceError(
        f"the step does not separate into micro-batches: {node.name} at "
        f"{source_line(node.source)} {reason}{f' ({whole})' if whole else ''}; {remedy}"
    )


def _why_whole(node: Node, batch: Batch) -> str:
    """Return why the rows of a micro-batch do not pass through an equation by themselves."""
    if node.bodies:
        return ""
    rule = primitive_rule(node.equation).rule(node.equation)
    shapes = (aval.shape for aval in node.equation.in_avals)
    blocks = {
        size // rule.loops[loops[0]].size
        for shape, dims in zip(shapes, rule.operands, strict=True)
        for size, loops in zip(shape, dims, strict=True)
        if len(loops) == 1 and not rule.halos
    } - {1}
    if rule.whole or not blocks:
        return rule.whole
    run = batch.size // (batch.groups * batch.num_microbatches)
    return f"blocks of {max(blocks)} rows, where a micro-batch has {run} of the batch in a row"


def _pairs(node: Node, states: Sequence[TimeState]) -> bool:
    """Return whether an equation is a product of all rows with all rows, as a contrastive loss."""
    if node.name != "dot_general":
        return False
    contracted, batch = node.equation.params["dimension_numbers"]
    sides = zip(states, contracted, batch, strict=True)
    return all(s.kind == SPLIT and s.dim not in (*sums, *rows) for s, sums, rows in sides)


def is_heavy(node: Node) -> bool:
    """Return whether an equation holds a dense product or convolution."""
    if node.bodies:
        return any(is_heavy(inner) for body in node.bodies for inner in body.nodes)
    return primitive_rule(node.equation).heavy


class _Analysis:
    """Attempts over one program or body."""

    def __init__(
        self,
        program: Program,
        batch: Batch,
        forced: _Forced,
        local: bool,
        *,
        top: bool = True,
        not_before: AbstractSet[int] = frozenset(),
    ) -> None:
        self.program = program
        self.batch = batch
        self.forced = forced
        self.local = local
        self.top = top
        self.states: dict[int, TimeState] = dict.fromkeys(program.constants, R)
        self.nodes: list[NodeTime] = []
        self.producer: dict[int, int] = {}
        # Inputs that are not there before the loop.
        self.not_before = not_before
        # After-loop values that hold gathered rows of the batch, with the equation to blame.
        self.gathered: dict[int, Node] = {}
        self._rules: dict[int, LoopRule] = {}
        self._readers = readers_of(program)

    def run(self, inputs: Sequence[TimeState]) -> BlockTime:
        """Decide on the equations that are not decided yet."""
        self.states.update(zip(self.program.inputs, inputs, strict=True))
        for position, node in enumerate(self.program.nodes[len(self.nodes) :], len(self.nodes)):
            decision = self._decide(position, node)
            results = tuple(
                L if self._is_local(i) and s.kind == PARTIAL else s
                for i, s in zip(node.outputs, decision.results, strict=True)
            )
            self.nodes.append(replace(decision, results=results))
            for ident, state in zip(node.outputs, results, strict=True):
                self.states[ident] = state
                self.producer[ident] = position
        return BlockTime(
            inputs=tuple(inputs),
            states=self.states,
            nodes=tuple(self.nodes),
            outputs=tuple(self.states[i] for i in self.program.outputs),
        )

    def go_back(self, forced: _Forced) -> None:
        """Forget the decisions that what was found out may change: all from the first it names."""
        named = set(forced.before - self.forced.before)
        for program, ident in forced.local - self.forced.local:
            # A value of a body may be one of any equation.
            named.add(self.producer.get(ident, 0) if program == id(self.program) else 0)
        first, end = min(named, default=0), len(self.nodes) + 1
        for node in self.program.nodes[first:end]:
            for ident in node.outputs:
                self.gathered.pop(ident, None)
        del self.nodes[first:]
        self.forced = forced

    def _is_local(self, ident: int) -> bool:
        return (id(self.program), ident) in self.forced.local

    def _decide(self, position: int, node: Node) -> NodeTime:
        whole = NodeTime(
            region=BEFORE_LOOP if self.top else INSIDE_LOOP,
            choice=NONE,
            wants=(R,) * len(node.inputs),
            results=(R,) * len(node.outputs),
        )
        if position in self.forced.before and self.top:
            return whole
        states = [self.states[i] for i in node.inputs]
        kinds = {state.kind for state in states}
        if kinds <= {WHOLE}:
            # A loop with rows may carry a counter or a key: that is known inside only.
            made = [self.producer[i] for i in node.inputs if i in self.producer]
            if any(self.nodes[p].region == INSIDE_LOOP for p in made):
                return replace(whole, region=INSIDE_LOOP)
            return whole
        if LOCAL in kinds and self.program.results.issuperset(node.outputs):
            return self._after(node, states)
        if AFTER in kinds:
            blame = None
            if kinds & {SPLIT, LOCAL}:
                late = [i for i, s in zip(node.inputs, states, strict=True) if s == A]
                blame = self._hoist(node, late)
            return self._after(node, states, blame)
        inside = self._bodies(node, states) if node.bodies else self._inside(node, states)
        if inside is not None:
            return inside
        if kinds <= {WHOLE, PARTIAL} and self.top:
            return self._after(node, states)
        return self._unsplit(node, states)

    def _after(
        self, node: Node, states: Sequence[TimeState], blame: Node | None = None
    ) -> NodeTime:
        """Run after the loop; heavy work on rows gathered from all micro-batches is refused."""
        earlier = next((self.gathered[i] for i in node.inputs if i in self.gathered), None)
        blame = earlier or blame
        if blame is None and any(state.kind == SPLIT for state in states):
            blame = node
        if blame is not None:
            if is_heavy(node):
                does, why = "", ""
                if blame is node and _pairs(node, states):
                    does = "pairs each row with each other one, and "
                if blame.name == "cond":
                    why = " (a reduction over all rows decides its branch)"
                reason = f"{does}needs the whole batch before the rest can go on{why}"
                raise NotSeparableError(blame, reason)
            self.gathered.update(dict.fromkeys(node.outputs, blame))
        return NodeTime(
            region=AFTER_LOOP,
            choice=NONE,
            wants=(R,) * len(node.inputs),
            results=(A,) * len(node.outputs),
        )

    def _unsplit(self, node: Node, states: Sequence[TimeState]) -> NodeTime:
        """No form inside: hoist what is partial, make it local, or gather the rows afterwards."""
        partials = [i for i, s in zip(node.inputs, states, strict=True) if s.kind == PARTIAL]
        mixed = any(s.kind in (SPLIT, LOCAL) for s in states)
        if partials and (mixed or not self.top):
            if self.top:
                return self._after(node, states, self._hoist(node, partials))
            if self.local:
                self._localize(partials)
            raise NotSeparableError(node, "uses a reduction over the batch that is not complete")
        if not node.bodies and not self._rule(node).ruled:
            raise TraceError(
                f"no rule for {node.name} at {source_line(node.source)}: it cannot run on a "
                "micro-batch; use num_microbatches=1, or state its loops, by mw.sharded_kernel or "
                f"parallelize(rules={{{node.name!r}: ...}})"
            )
        if not self.top:
            raise NotSeparableError(node, "needs rows of the whole batch inside a loop or branch")
        return self._after(node, states)

    def _rule(self, node: Node) -> LoopRule:
        key = id(node)
        if key not in self._rules:
            self._rules[key] = primitive_rule(node.equation).rule(node.equation)
        return self._rules[key]

    # -- equations inside the loop ------------------------------------------------------------

    def _inside(self, node: Node, states: Sequence[TimeState]) -> NodeTime | None:
        rule = self._rule(node)
        if not rule.ruled:
            return None
        sizes = (self.batch.num_microbatches,)
        has_split = any(s.kind == SPLIT for s in states)
        if has_split:
            choices = [
                i
                for i, loop in enumerate(rule.loops)
                if not loop.block
                and loop.size % (self.batch.num_microbatches * parts_of(rule, i, states)) == 0
            ]
        elif any(s.kind == PARTIAL for s in states):
            choices = [passing(k) for k in range(len(rule.linear))]
        else:
            choices = [NONE]
        for choice in choices:
            if not divides(rule, (choice,), sizes):
                continue
            parts = parts_of(rule, choice, states)
            wants = operand_states(rule, choice, parts)
            if not all(fits(s, want) for s, want in zip(states, wants, strict=True)):
                continue
            out = result_states(rule, choice, parts)
            if choice == NONE:
                out = (L,) * len(out)
            is_sum = self.top and not has_split and choice != NONE
            if is_sum and not runs_on_terms(self.program, node, states, self._readers):
                return None  # rule 2: accumulate first, then once after the loop
            return NodeTime(
                region=INSIDE_LOOP, choice=choice, wants=wants, results=out, parts=parts
            )
        return of_row_blocks(node.equation, states)

    def _bodies(self, node: Node, states: Sequence[TimeState]) -> NodeTime | None:
        reduced = {state.kind for state in states} <= {WHOLE, PARTIAL}
        if reduced and self.top and node.name != "scan":
            return None  # rule 2 again: accumulate first, then decide once after the loop

        def analyze_body(part: int, inputs: Sequence[TimeState]) -> BlockTime:
            body = node.bodies[part]
            return _Analysis(body, self.batch, self.forced, self.local, top=False).run(inputs)

        try:
            return analyze_bodies(node, states, analyze_body)
        except NotSeparableError:
            partials = [i for i, s in zip(node.inputs, states, strict=True) if s.kind == PARTIAL]
            if reduced and self.top:
                return None
            if self.top and partials:
                self._hoist(node, partials)
            raise

    # -- hoisting and local statistics --------------------------------------------------------

    def _ancestors(self, idents: Sequence[int]) -> set[int]:
        seen: set[int] = set()
        stack = [self.producer[i] for i in idents if i in self.producer]
        while stack:
            position = stack.pop()
            if position not in seen:
                seen.add(position)
                inputs = self.program.nodes[position].inputs
                stack += [self.producer[i] for i in inputs if i in self.producer]
        return seen

    def _hoist(self, node: Node, idents: Sequence[int]) -> Node:
        """Move the slice that makes `idents` before the loop if it is light (rule 3).

        Returns:
            The equation to blame if that cannot be done.

        Raises:
            _RetryError: it can be done, or the reductions can be made local.
            NotSeparableError: `idents` follow from an input that is known only after the loop.
        """
        slice_ = self._ancestors(idents)
        dependent = [p for p in sorted(slice_) if self.nodes[p].region != BEFORE_LOOP]
        read = {*idents, *(i for p in slice_ for i in self.program.nodes[p].inputs)}
        if any(self.states[i] == A for i in read & self.not_before):
            raise NotSeparableError(node, "needs what is known only after all micro-batches")
        is_early = read.isdisjoint(self.not_before)
        if is_early and not any(is_heavy(self.program.nodes[p]) for p in dependent):
            raise _RetryError(replace(self.forced, before=self.forced.before | slice_))
        if self.local:
            self._localize(self._frontier(dependent, idents))
        # Rather the branch than what decides it, which may stand in a library.
        behind = [self.program.nodes[p] for p in dependent]
        decided = (n for n in (*behind, node) if n.name == "cond" and self._is_decided(n))
        bending = (self.program.nodes[p] for p in dependent if self._bends(p))
        return next(decided, next(bending, node))

    def _is_decided(self, cond: Node) -> bool:
        return self.states[cond.inputs[0]].kind != WHOLE

    def localize_results(self, idents: Sequence[int]) -> None:
        """Make values statistics of each micro-batch.

        Raises:
            _RetryError: that takes another attempt.
        """
        late = [i for i in idents if self.states[i].kind in (PARTIAL, AFTER)]
        self._localize(self._frontier(self._ancestors(late), late))

    def _frontier(self, positions: Iterable[int], idents: Sequence[int]) -> set[int]:
        """Return the terms of `idents`, made by equations at `positions` after the loop."""
        read = (
            i
            for p in positions
            if self.nodes[p].region == AFTER_LOOP
            for i in self.program.nodes[p].inputs
        )
        return {i for i in (*read, *idents) if self.states[i].kind == PARTIAL}

    def _bends(self, position: int) -> bool:
        """Return whether an equation after the loop is not linear in what depends on the batch."""
        node = self.program.nodes[position]
        if self.nodes[position].region != AFTER_LOOP:
            return False
        linear = () if node.bodies else self._rule(node).linear
        return any(
            self.states[ident].kind in (PARTIAL, AFTER)
            and not any(index in group for group in linear)
            for index, ident in enumerate(node.inputs)
        )

    def _localize(self, idents: Iterable[int]) -> None:
        new = {(id(self.program), i) for i in idents}
        if not new <= self.forced.local:
            raise _RetryError(replace(self.forced, local=self.forced.local | new))
