"""A route of tiles as flows between hosts, which wait for what they pass on.

From one host to another moves go in their order, each when the one before has come; those of other
pairs of hosts go beside them and share the network cards, as sockets do.  What waits for a signal
waits for the flow that the signal tells of; cutting and joining take no time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from evaluation.transfers.dependent_flows import DependentFlow
from meshwise.resharding.route import Route
from meshwise.simulate.links import Flow


def route_flows(route: Route, hosts: Sequence[int], itemsize: int) -> list[DependentFlow]:
    """Return the flows of a route, its moves in order.

    Args:
        route: The route.
        hosts: For each device the number of its host.
        itemsize: Bytes of an element.
    """
    found: list[DependentFlow] = []
    # For each value the flows that it needs, and for each pair of hosts its last flow.
    needs: dict[int, tuple[int, ...]] = dict.fromkeys(route.held.values(), ())
    last: dict[tuple[int, int], int] = {}

    def all_of(values: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted({flow for value in values for flow in needs[value]}))

    for phase in route.phases:
        for cut in phase.cuts:
            needs.update(dict.fromkeys(cut.results, all_of((cut.value, *cut.after))))
        for move in phase.moves:
            way = hosts[move.source], hosts[move.destination]
            waits = set(needs[move.value])
            if way[0] != way[1]:
                if way in last:
                    waits.add(last[way])
                last[way] = len(found)
            needs[move.result] = (len(found),)
            flow = Flow(*way, float(itemsize * math.prod(move.shape)))
            found.append(DependentFlow(flow, tuple(sorted(waits))))
        for signal in phase.signals:
            needs[signal.result] = needs[signal.value]
        for join in phase.joins:
            needs[join.result] = all_of(join.values)
    return found
