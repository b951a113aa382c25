"""A route of tiles as flows between hosts, which wait for what they pass on.

A host sends its moves in their order, each when the one before has left, and takes them in order,
each when the one before has come.  What waits for a signal waits for the flow that the signal tells
of; cutting and joining take no time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from evaluation.transfers.dependent_flows import DependentFlow
from meshwise.resharding.route import Route
from meshwise.simulate.actions import Flow


def route_flows(route: Route, hosts: Sequence[int], itemsize: int) -> list[DependentFlow]:
    """Return the flows of a route, its moves in order.

    Args:
        route: The route.
        hosts: For each device the number of its host.
        itemsize: Bytes of an element.
    """
    found: list[DependentFlow] = []
    # For each value the flows that it needs, and for each port of a host its last flow.
    needs: dict[int, tuple[int, ...]] = dict.fromkeys(route.held.values(), ())
    last: dict[tuple[str, int], int] = {}

    def all_of(values: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted({flow for value in values for flow in needs[value]}))

    for phase in route.phases:
        for cut in phase.cuts:
            needs.update(dict.fromkeys(cut.results, all_of((cut.value, *cut.after))))
        for move in phase.moves:
            way = hosts[move.source], hosts[move.destination]
            waits = set(needs[move.value])
            if way[0] != way[1]:
                ports = ("out", way[0]), ("in", way[1])
                waits |= {last[port] for port in ports if port in last}
                last.update(dict.fromkeys(ports, len(found)))
            needs[move.result] = (len(found),)
            flow = Flow(*way, float(itemsize * math.prod(move.shape)))
            found.append(DependentFlow(flow, tuple(sorted(waits))))
        for signal in phase.signals:
            needs[signal.result] = needs[signal.value]
        for join in phase.joins:
            needs[join.result] = all_of(join.values)
    return found
