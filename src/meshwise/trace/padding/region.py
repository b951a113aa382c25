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

from meshwise.trace.padding.classes import DimClass, padded_loops
from meshwise.trace.padding.cut import INFINITE, source_side
from meshwise.trace.padding.scopes import Scope, Value, ports_of, scopes_of
from meshwise.trace.to_graph import RuleCache, itemsize

# An equation or a port of a scan: scope, position of the equation, number of the port or -1.
Place = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Region:
    """The equations and ports of scans that run padded with one class."""

    dim_class: DimClass
    places: frozenset[Place]

    def holds(self, scope: Scope, position: int, port: int = -1) -> bool:
        """Whether an equation, or a port of a scan, is padded."""
        return (scope.number, position, port) in self.places


def padded_region(root: Scope, dim_class: DimClass, rules: RuleCache) -> Region:
    """The region of a class with the cheapest border."""
    network = _Network(dim_class, rules)
    network.add(root)
    for ident in root.program.inputs:
        network.produce((root.number, ident), network.outside)
    for ident in root.program.outputs:
        network.consume((root.number, ident), network.outside)
    return Region(dim_class, network.solved(_bytes_of(root)))


def _bytes_of(root: Scope) -> Mapping[Value, int]:
    """Bytes of all values that are not generated, in a step."""
    return {
        (scope.number, ident): scope.times * math.prod(aval.shape) * itemsize(aval.dtype)
        for scope in scopes_of(root)
        for ident, aval in enumerate(scope.program.avals)
        if ident not in scope.generated
    }


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

    def solved(self, num_bytes: Mapping[Value, int]) -> frozenset[Place]:
        capacities: dict[tuple[int, int], int] = {}
        count = len(self.places) + 1

        def edge(start: int, end: int, capacity: int) -> None:
            known = capacities.get((start, end), 0)
            both = INFINITE in (known, capacity)
            capacities[(start, end)] = INFINITE if both else known + capacity

        for value, producer in self.producers.items():
            consumers = self.consumers.get(value, [])
            if not consumers or value not in num_bytes:
                continue
            # Sliced once if the producer is padded and any consumer is not; likewise padded once.
            sliced, padded = count, count + 1
            count += 2
            edge(producer, sliced, num_bytes[value])
            edge(padded, producer, num_bytes[value])
            for consumer in consumers:
                edge(sliced, consumer, INFINITE)
                edge(consumer, padded, INFINITE)
        inside = source_side(count, capacities, self.sources, self.sinks)
        return frozenset(key for key, place in self.places.items() if place in inside)
