"""Which equations run padded: all dense products of the class, and what lies cheaply between.

A value that goes from a padded equation to one that is not is sliced, the other way it is padded;
its dim is whole there.  The region is the one whose border has the fewest bytes: a smallest cut
between the dense products on one side, arguments, results and equations that cannot run padded
on the other.  Constants, carries and slices of a scan are padded outside and inside alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from meshwise.graph.minimum_cut import INFINITE, source_side
from meshwise.trace.padding.classes import DimClass, padded_loops
from meshwise.trace.padding.scopes import Scope, Value, ports_of, scopes_of
from meshwise.trace.to_graph import RuleCache, itemsize

# An equation or a port of a scan: scope, position of the equation, number of the port or -1.
Place = tuple[int, int, int]

_OF_ARGUMENT, _OF_TRANSPOSED, _OF_OTHERS = 14, 15, 16


@dataclass(frozen=True, slots=True)
class PaddedRegion:
    """The equations and ports of scans that run padded with one class."""

    dim_class: DimClass
    places: frozenset[Place]

    def holds(self, scope: Scope, position: int, port: int = -1) -> bool:
        """Return whether an equation, or a port of a scan, is padded."""
        return (scope.number, position, port) in self.places


def padded_region(root: Scope, dim_class: DimClass, rules: RuleCache) -> PaddedRegion:
    """Return the region of a class with the cheapest border."""
    network = _Network(dim_class, rules)
    network.add(root)
    for ident in root.program.inputs:
        network.produce((root.number, ident), network.outside)
    for ident in root.program.outputs:
        network.consume((root.number, ident), network.outside)
    return PaddedRegion(dim_class, network.solved(_border_costs(root)))


def _border_costs(root: Scope) -> Mapping[Value, int]:
    """Return what it costs that a value is padded or sliced: its bytes in a step, in sixteenths.

    Of values with equal bytes, an argument is the cheapest and the result of a transpose the next:
    XLA merges a transpose with the product beside it, but not with one behind a pad or a slice.
    Generated values cost nothing.
    """
    costs: dict[Value, int] = {}
    for scope in scopes_of(root):
        weight = dict.fromkeys(scope.program.inputs, _OF_ARGUMENT)
        for node in scope.program.nodes:
            if node.name == "transpose":
                weight.update(dict.fromkeys(node.outputs, _OF_TRANSPOSED))
        for ident, aval in enumerate(scope.program.avals):
            if ident not in scope.generated:
                num_bytes = scope.times * math.prod(aval.shape) * itemsize(aval.dtype)
                costs[(scope.number, ident)] = weight.get(ident, _OF_OTHERS) * num_bytes
    return costs


class _Network:
    """Places that may run padded, and the values between them; lives for one class."""

    def __init__(self, dim_class: DimClass, rules: RuleCache) -> None:
        self.dim_class = dim_class
        self.rules = rules
        self.outside = 0
        self.places: dict[Place, int] = {}
        self.sources: set[int] = set()
        self.sinks: set[int] = {self.outside}
        self.producers: dict[Value, int] = {}
        self.consumers: dict[Value, list[int]] = {}

    def place(self, key: Place) -> int:
        return self.places.setdefault(key, len(self.places) + 1)

    def produce(self, value: Value, place: int) -> None:
        if value in self.dim_class.dims:
            self.producers[value] = place

    def consume(self, value: Value, place: int) -> None:
        if value in self.dim_class.dims:
            self.consumers.setdefault(value, []).append(place)

    def add(self, scope: Scope) -> None:
        for position, node in enumerate(scope.program.nodes):
            if position in scope.bodies:
                self._scan(scope, position)
                continue
            if scope.is_generated(node):
                continue
            place = self._equation(scope, position)
            for ident in node.inputs:
                self.consume((scope.number, ident), place)
            for ident in node.outputs:
                self.produce((scope.number, ident), place)

    def _equation(self, scope: Scope, position: int) -> int:
        node = scope.program.nodes[position]
        if node.bodies:
            return self.outside
        row, rule, _, _ = self.rules.lookup(node.equation)
        loops = padded_loops(scope, node, rule, self.dim_class)
        if not loops:
            return self.outside
        place = self.place((scope.number, position, -1))
        if row.heavy:
            self.sources.add(place)
        return place

    def _scan(self, scope: Scope, position: int) -> None:
        body, node = scope.bodies[position], scope.program.nodes[position]
        for number, port in enumerate(ports_of(node)):
            place = self.place((scope.number, position, number))
            for ident in (port.entry, port.exit):
                if port.shift and ident >= 0 and 0 in self.dim_class.of(scope, ident):
                    self.sinks.add(place)  # the iterations themselves
            if port.entry >= 0:
                self.consume((scope.number, port.entry), place)
                self.produce((body.number, port.arrival), place)
            if port.exit >= 0:
                self.consume((body.number, port.departure), place)
                self.produce((scope.number, port.exit), place)
        self.add(body)

    def solved(self, costs: Mapping[Value, int]) -> frozenset[Place]:
        capacities: dict[tuple[int, int], int] = {}
        count = len(self.places) + 1

        def edge(start: int, end: int, capacity: int) -> None:
            known = capacities.get((start, end), 0)
            both = INFINITE in (known, capacity)
            capacities[(start, end)] = INFINITE if both else known + capacity

        for value, producer in self.producers.items():
            consumers = self.consumers.get(value, [])
            if not consumers or value not in costs:
                continue
            # Sliced once if the producer is padded and any consumer is not; likewise padded once.
            sliced, padded = count, count + 1
            count += 2
            edge(producer, sliced, costs[value])
            edge(padded, producer, costs[value])
            for consumer in consumers:
                edge(sliced, consumer, INFINITE)
                edge(consumer, padded, INFINITE)
        inside = source_side(count, capacities, self.sources, self.sinks)
        return frozenset(key for key, place in self.places.items() if place in inside)
