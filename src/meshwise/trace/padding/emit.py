"""The program with padded dims: each equation of a region in its local form, at the new size.

Arguments and results keep their shapes.  What is generated (iota, literals and what follows from
them) is made in each size that is wanted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from meshwise.graph.loops import PARALLEL, LoopRule
from meshwise.jax_compat.source_lines import source_scope
from meshwise.rules.primitive import rebind
from meshwise.trace.evaluate import run_node, run_structured
from meshwise.trace.padding.classes import REDUCED_OPERANDS, padded_loops
from meshwise.trace.padding.region import PaddedRegion
from meshwise.trace.padding.scopes import Scope, ports_of
from meshwise.trace.padding.shards import PaddedShards
from meshwise.trace.padding.values import (
    OF_ZERO,
    PaddedValue,
    masked,
    padded_to,
    sliced_to,
    zero_dims,
)
from meshwise.trace.program import Node
from meshwise.trace.to_graph import RuleCache

# The classes, by position in `_Padding.regions`, with which a value or an equation is padded.
Form = frozenset[int]
_PLAIN: Form = frozenset()


@dataclass(frozen=True, slots=True)
class PaddingEmitter:
    """What is padded.

    Attributes:
        regions: A region for each class.
        sizes: The new size of each.
        rules: Rules of the equations.
    """

    regions: tuple[PaddedRegion, ...]
    sizes: tuple[int, ...]
    rules: RuleCache

    def form_of(self, scope: Scope, ident: int, among: Form) -> Form:
        """Return the classes of a form that a value has dims of."""
        return frozenset(c for c in among if self.regions[c].dim_class.of(scope, ident))

    def form_at(self, scope: Scope, position: int, port: int = -1) -> Form:
        """Return the classes with which an equation, or a port of a scan, is padded."""
        return frozenset(
            c for c, region in enumerate(self.regions) if region.holds(scope, position, port)
        )

    def dims(self, scope: Scope, ident: int, form: Form, *, new: bool) -> dict[int, int]:
        """Dims of a value that belong to a form, with their new or old sizes."""
        return {
            dim: self.sizes[c] if new else self.regions[c].dim_class.size
            for c in form
            for dim in self.regions[c].dim_class.of(scope, ident)
        }


class _Block:
    """Values of one program while it is traced; lives only inside `run_padded`."""

    def __init__(self, scope: Scope, padding: PaddingEmitter) -> None:
        self.scope = scope
        self.padding = padding
        self.values: dict[int, dict[Form, PaddedValue]] = {}
        self.home: dict[int, Form] = {}
        self.masks: dict[tuple[int, Form, tuple[tuple[int, str], ...]], Array] = {}
        self.makers = {
            out: position
            for position, node in enumerate(scope.program.nodes)
            if scope.is_generated(node)
            for out in node.outputs
        }

        self.reduced = self._reduced_dims()

    def _reduced_dims(self) -> dict[int, dict[int, str]]:
        """For each value the dims that padded equations reduce, with the kind of the reduction.

        Sums go before other kinds.
        """
        found: dict[int, dict[int, str]] = {}
        for position, node in enumerate(self.scope.program.nodes):
            form = self.padding.form_at(self.scope, position)
            if form and position not in self.scope.bodies:
                rule = self.padding.rules.lookup(node.equation)[1]
                loops = self._loops(node, rule, form)
                for k, ident in enumerate(node.inputs):
                    kinds = found.setdefault(ident, {})
                    for dim, kind, _ in _reduced(node, rule, loops, k):
                        if dim not in kinds or kind in OF_ZERO:
                            kinds[dim] = kind
        return found

    def define(self, ident: int, form: Form, value: PaddedValue) -> None:
        # Masked once for all users: two values that differ beyond the end are stored apart.
        sizes = self.padding.dims(self.scope, ident, form, new=False)
        kinds = {d: kind for d, kind in self.reduced.get(ident, {}).items() if d in sizes}
        if len(set(kinds.values())) == 1:
            for dim, kind in kinds.items():
                value = masked(value, dim, sizes[dim], kind)
        self.home.setdefault(ident, form)
        self.values.setdefault(ident, {})[form] = value

    def get(self, ident: int, form: Form) -> PaddedValue:
        """Return a value padded with exactly the classes of `form` of which it has dims."""
        form = self.padding.form_of(self.scope, ident, form)
        known = self.values.get(ident, {})
        if form in known:
            return known[form]
        if ident in self.makers:
            self.equation(self.makers[ident], form)
            if form in self.values[ident]:
                return self.values[ident][form]
        elif not known:
            self.define(ident, _PLAIN, PaddedValue(self.scope.program.constants[ident]))
        value = self._converted(ident, form)
        self.values[ident][form] = value
        return value

    def _converted(self, ident: int, form: Form) -> PaddedValue:
        home = self.home[ident]
        value = self.values[ident][home]
        less = self.padding.dims(self.scope, ident, home - form, new=False)
        more = self.padding.dims(self.scope, ident, form - home, new=True)
        value = sliced_to(value, less) if less else value
        return padded_to(value, more) if more else value

    def run(self) -> None:
        for position, node in enumerate(self.scope.program.nodes):
            if self.scope.is_generated(node):
                continue
            with source_scope(node.source):
                if position in self.scope.bodies:
                    self._scan(position, node)
                else:
                    self.equation(position, self.padding.form_at(self.scope, position))

    def equation(self, position: int, form: Form) -> None:
        """Run an equation padded with the classes of `form`, as far as it can be."""
        node = self.scope.program.nodes[position]
        with source_scope(node.source):
            if not form:
                operands = [self.get(i, _PLAIN).array for i in node.inputs]
                results = (
                    rebind(node.equation, operands) if not node.bodies else run_node(node, operands)
                )
                for ident, array in zip(node.outputs, results, strict=True):
                    self.define(ident, _PLAIN, PaddedValue(array))
                return
            self._padded(node, form)

    def _padded(self, node: Node, form: Form) -> None:
        row, rule, _, _ = self.padding.rules.lookup(node.equation)
        loops = self._loops(node, rule, form)
        used = frozenset(loops.values())
        operands = [self.get(i, used) for i in node.inputs]
        arrays = [
            self._neutral(node, rule, loops, k, operand) for k, operand in enumerate(operands)
        ]
        shards = PaddedShards(rule, {loop: self.padding.sizes[c] for loop, c in loops.items()})
        results = row.local(node.equation, shards, arrays)
        for index, (ident, array) in enumerate(zip(node.outputs, results, strict=True)):
            own = self.padding.form_of(self.scope, ident, used)
            zero = zero_dims(node.equation, rule, loops, operands, index)
            self.define(ident, own, PaddedValue(array, zero))

    def _loops(self, node: Node, rule: LoopRule, form: Form) -> dict[int, int]:
        """Return the loops of an equation that are padded, each with its class."""
        return {
            loop: c
            for c in sorted(form)
            for loop in padded_loops(self.scope, node, rule, self.padding.regions[c].dim_class)
            or ()
        }

    def _neutral(
        self, node: Node, rule: LoopRule, loops: Mapping[int, int], k: int, operand: PaddedValue
    ) -> Array:
        """Return an operand whose elements beyond the end do not count where they are reduced."""
        ident = node.inputs[k]
        todo = _reduced(node, rule, loops, k)
        form = self.padding.form_of(self.scope, ident, frozenset(loops.values()))
        key = (ident, form, tuple((dim, kind) for dim, kind, _ in todo))
        if todo and key not in self.masks:
            for dim, kind, c in todo:
                size = self.padding.regions[c].dim_class.size
                operand = masked(operand, dim, size, kind)
            self.masks[key] = operand.array
        return self.masks[key] if todo else operand.array

    def _scan(self, position: int, node: Node) -> None:
        body = self.scope.bodies[position]
        ports = ports_of(node)
        forms = [self.padding.form_at(self.scope, position, number) for number in range(len(ports))]
        entries = [(p, f) for p, f in zip(ports, forms, strict=True) if p.entry >= 0]
        exits = [(p, f) for p, f in zip(ports, forms, strict=True) if p.exit >= 0]
        operands = [self.get(port.entry, form) for port, form in entries]
        is_carry = [port.departure >= 0 for port, _ in entries]

        def step(_: int, arrays: list[Array]) -> list[Array]:
            block = _Block(body, self.padding)
            for (port, form), carried, outer, array in zip(
                entries, is_carry, operands, arrays, strict=True
            ):
                own = self.padding.form_of(body, port.arrival, form)
                zero = () if carried else (dim - port.shift for dim in outer.zero)
                block.define(port.arrival, own, PaddedValue(array, frozenset(zero)))
            block.run()
            return [
                _typed(block.get(port.departure, form).array, body, port.departure)
                for port, form in exits
            ]

        results = run_structured(node, [operand.array for operand in operands], step)
        for (port, form), array in zip(exits, results, strict=True):
            own = self.padding.form_of(self.scope, port.exit, form)
            self.define(port.exit, own, PaddedValue(array))


def _reduced(
    node: Node, rule: LoopRule, loops: Mapping[int, int], k: int
) -> list[tuple[int, str, int]]:
    """Dims of operand `k` along which padded loops reduce: dim, kind of the loop, class."""
    return [
        (dim, rule.loops[follows[0]].kind, loops[follows[0]])
        for dim, follows in enumerate(rule.operands[k])
        if len(follows) == 1
        and follows[0] in loops
        and rule.loops[follows[0]].kind != PARALLEL
        and k in REDUCED_OPERANDS.get(node.name, ())
    ]


def _typed(array: Array, scope: Scope, ident: int) -> Array:
    dtype = scope.program.avals[ident].dtype
    return array if jnp.issubdtype(dtype, jax.dtypes.prng_key) else jnp.asarray(array, dtype)


def run_padded(scope: Scope, padding: PaddingEmitter, args: Sequence[Array]) -> list[Array]:
    """Return the step with padded dims inside, on flat arguments.

    Args:
        scope: The step.
        padding: What is padded.
        args: Flat arguments, in the shapes of the user.

    Returns:
        Flat results, in the shapes of the user.
    """
    block = _Block(scope, padding)
    for ident, array in zip(scope.program.inputs, args, strict=True):
        block.define(ident, _PLAIN, PaddedValue(array))
    block.run()
    found: list[Array] = []
    for i in scope.program.outputs:
        with source_scope(scope.program.source(i)):
            found.append(_typed(block.get(i, _PLAIN).array, scope, i))
    return found
