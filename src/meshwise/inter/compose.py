"""Costs of all runs of layers on one mesh, composed from the costs of single layers.

    cost(i, j) = min over states s_i .. s_(j+1) of sum over k in i..j of M_k[s_k, s_(k+1)]

M_k is the matrix of layer k (`inter.conditioned`).  Its entries are bounds until a cheapest chain
uses them; then they are solved, and the chains are found anew.  In the end every cheapest chain
has exact entries only, so it is the cheapest of all.

Source: DESIGN decision 10, (min,+) products.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwise.inter.conditioned import ConditionedLayer, Entry

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCosts:
    """What each run of layers costs on one mesh; arrays over (first layer, last layer).

    Entries with last < first, and runs without a plan, have infinite cost.

    Attributes:
        cost_s: Objective of a step.
        loop_s: Seconds of all micro-batches.
        once_s: Seconds of what runs once a step.
        resident_bytes: Held all the time by one device.
        microbatch_bytes: Held for each micro-batch in flight.
        temporary_bytes: On top at the peak.
    """

    cost_s: Array
    loop_s: Array
    once_s: Array
    resident_bytes: Array
    microbatch_bytes: Array
    temporary_bytes: Array


class _Chain(NamedTuple):
    """Cheapest chains from one first layer, for each state after the present one."""

    cost: Array
    path: tuple[tuple[int, ...], ...]


def cheapest_states(layers: Sequence[ConditionedLayer], first: int, last: int) -> tuple[int, ...]:
    """States of the cuts of the cheapest chain over known entries and bounds."""
    chain = _start(layers[first])
    for k in range(first + 1, last + 1):
        chain = _extended(chain, layers[k])
    return chain.path[int(np.argmin(chain.cost))]


def _start(layer: ConditionedLayer) -> _Chain:
    enters = layer.bound_s.argmin(axis=0)
    cost = layer.bound_s[enters, np.arange(len(enters))]
    return _Chain(cost, tuple((int(a), b) for b, a in enumerate(enters)))


def _extended(chain: _Chain, layer: ConditionedLayer) -> _Chain:
    total = chain.cost[:, None] + layer.bound_s
    enters = total.argmin(axis=0)
    cost = total[enters, np.arange(total.shape[1])]
    return _Chain(cost, tuple((*chain.path[int(a)], b) for b, a in enumerate(enters)))


def compose(layers: Sequence[ConditionedLayer]) -> RunCosts:
    """Costs of all runs.

    Args:
        layers: In order; equal layers may be the same object.
    """
    while True:
        paths = _paths(layers)
        missing = {
            (id(layers[k]), a, b): layers[k]
            for (first, _), path in paths.items()
            for k, (a, b) in enumerate(itertools.pairwise(path), first)
            if not layers[k].is_exact[a, b]
        }
        if not missing:
            return _summed(layers, paths)
        for (_, a, b), layer in missing.items():
            layer.sharpen(a, b)


def _paths(layers: Sequence[ConditionedLayer]) -> dict[tuple[int, int], tuple[int, ...]]:
    """States of the cheapest chain of every run that has one."""
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    for first, layer in enumerate(layers):
        chain = _start(layer)
        for last in range(first, len(layers)):
            if last > first:
                chain = _extended(chain, layers[last])
            best = int(np.argmin(chain.cost))
            if not np.isfinite(chain.cost[best]):
                break
            found[first, last] = chain.path[best]
    return found


def entries(layers: Sequence[ConditionedLayer], first: int, states: Sequence[int]) -> list[Entry]:
    """The plans of the layers of a chain whose entries are exact."""
    found = [layers[k].entry(a, b) for k, (a, b) in enumerate(itertools.pairwise(states), first)]
    return [e for e in found if e is not None]


def _summed(
    layers: Sequence[ConditionedLayer], paths: dict[tuple[int, int], tuple[int, ...]]
) -> RunCosts:
    count = len(layers)
    names = ("cost_s", "loop_s", "once_s", "resident_bytes", "microbatch_bytes", "temporary_bytes")
    out = {name: np.full((count, count), np.inf) for name in names}
    for (first, last), path in paths.items():
        plans = entries(layers, first, path)
        memory = [plan.memory for plan in plans]
        place = (first, last)
        out["cost_s"][place] = sum(plan.cost_s for plan in plans)
        out["loop_s"][place] = sum(plan.loop_s for plan in plans)
        out["once_s"][place] = sum(plan.once_s for plan in plans)
        out["resident_bytes"][place] = sum(m.resident_bytes for m in memory)
        out["microbatch_bytes"][place] = sum(m.microbatch_bytes for m in memory)
        out["temporary_bytes"][place] = max(m.temporary_bytes for m in memory)
    return RunCosts(**out)
