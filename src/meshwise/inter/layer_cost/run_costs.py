"""Costs of all runs of layers on one mesh, composed from the costs of single layers.

    cost(i, j) = min over states s_i .. s_(j+1) of
                     a_i[s_i] + sum over k in i..j of M_k[s_k, s_(k+1)] + r_j[s_(j+1)]

M_k is the matrix of layer k (`inter.layer_cost.state_costs`), a and r what it takes to gather an
activation that comes from another stage, and a cotangent (`inter.layer_cost.boundary`).  Entries of
M are bounds until a cheapest chain uses them; then they are solved, and the chains are found anew.
In the end every cheapest chain has exact entries only, so it is the cheapest of all.

Source: docs/decisions/0011, (min,+) products.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from meshwise.inter.layer_cost.footprint import joint_footprint
from meshwise.inter.layer_cost.layer_network import LayerNetwork
from meshwise.inter.layer_cost.layer_record import LayerBounds, Place
from meshwise.inter.layer_cost.looking_threads import LookingThreads
from meshwise.inter.layer_cost.state_costs import ConditionedLayer, Entry
from meshwise.kernels.arrays import Bools, Floats

T = TypeVar("T", bound=Hashable)


class PlansAhead(Protocol):
    """What makes several plans of layers at once, ahead of their use."""

    def plan(self, chosen: Sequence[tuple[LayerNetwork, tuple[int, ...]]]) -> None:
        """Make plans of layers on one mesh, for choices of their classes of nodes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCosts:
    """What each run of layers costs on one mesh; arrays over (first layer, last layer).

    Entries with last < first, and runs without a plan, have infinite cost.

    Attributes:
        cost_s: Objective of a step.
        loop_s: Seconds of all micro-batches.
        gather_s: Seconds of one micro-batch for what other stages send.
        once_s: Seconds of what runs once a step.
        resident_bytes: Held all the time by one device.
        microbatch_bytes: Held for each micro-batch in flight.
        temporary_bytes: On top at the peak.
    """

    cost_s: Floats
    loop_s: Floats
    gather_s: Floats
    once_s: Floats
    resident_bytes: Floats
    microbatch_bytes: Floats
    temporary_bytes: Floats

    def __post_init__(self) -> None:
        """Check that all are numbers and none is below 0.

        Raises:
            ValueError: they are not.
        """
        for field in fields(self):
            # NaN is not >= 0.
            if not (getattr(self, field.name) >= 0).all():
                raise ValueError(f"`{field.name}` holds values that are no numbers or below 0")


class _Chain(NamedTuple):
    """Cheapest chains from one first layer, for each state after the present one."""

    cost: Floats
    path: tuple[tuple[int, ...], ...]


def cheapest_states(layers: Sequence[ConditionedLayer], first: int, last: int) -> tuple[int, ...]:
    """Return the states of the cuts of the cheapest chain over known entries and bounds.

    Args:
        layers: All layers, in order.
        first: First layer of the chain.
        last: Last layer of the chain.
    """
    chain = _start(layers[first])
    for k in range(first + 1, last + 1):
        chain = _extended(chain, layers[k])
    return _ended(chain, layers[last])[1]


def gathers(
    layers: Sequence[ConditionedLayer], first: int, last: int, states: Sequence[int]
) -> tuple[float, float]:
    """Return the seconds to gather the activation and the cotangent that a run gets.

    Args:
        layers: All layers, in order.
        first: First layer of the run.
        last: Last layer of the run.
        states: Of the cuts of the run.

    Returns:
        Seconds of one micro-batch for the activation, and for the cotangent.
    """
    before, after = layers[first].layer, layers[last].layer
    return float(before.arriving_s[states[0]]), float(after.returning_s[states[-1]])


def _start(layer: ConditionedLayer) -> _Chain:
    count, arriving_s = layer.layer.piece.num_microbatches, layer.layer.arriving_s
    total = count * arriving_s[:, None] + layer.bound_s
    enters = total.argmin(axis=0)
    cost = total[enters, np.arange(len(enters))]
    return _Chain(cost, tuple((int(a), b) for b, a in enumerate(enters)))


def _extended(chain: _Chain, layer: ConditionedLayer) -> _Chain:
    total = chain.cost[:, None] + layer.bound_s
    enters = total.argmin(axis=0)
    cost = total[enters, np.arange(total.shape[1])]
    return _Chain(cost, tuple((*chain.path[int(a)], b) for b, a in enumerate(enters)))


def _ended(chain: _Chain, last: ConditionedLayer) -> tuple[float, tuple[int, ...]]:
    """Cost and states of the cheapest of some chains that end with one layer."""
    total = chain.cost + last.layer.piece.num_microbatches * last.layer.returning_s
    best = int(np.argmin(total))
    return float(total[best]), chain.path[best]


def compose(
    layers: Sequence[ConditionedLayer],
    wanted: Bools | None = None,
    beside: PlansAhead | None = None,
) -> RunCosts:
    """Costs of all runs.

    Args:
        layers: In order; equal layers may be the same object, and runs of equal layers cost the
            same.
        wanted: Runs that matter, (first layer, last layer); None for all.  The others come out
            with infinite cost.
        beside: Makes the plans of all chains at once; None: each is made when it is used.
    """
    numbers, links = _distinct_runs(layers, wanted)
    matters = np.zeros(len(links), np.bool_)
    some = numbers if wanted is None else numbers[wanted]
    matters[some[some >= 0]] = True
    with LookingThreads() as threads:
        while True:
            paths = _paths(links, matters)
            runs = zip(_layers_of(links), paths, strict=True)
            missing = {
                (layer, place): None
                for layer, place in itertools.chain.from_iterable(_steps(*run) for run in runs)
                if not layer.is_exact[place]
            }
            if not missing:
                break
            threads.sharpen(list(missing))
    if beside is not None:
        steps = itertools.chain.from_iterable(map(_steps, _layers_of(links), paths))
        beside.plan([(layer.layer, layer.choice(*place)) for layer, place in steps])
    return _summed(numbers, links, paths)


def _steps(
    layers: Sequence[ConditionedLayer], states: Sequence[int]
) -> Iterator[tuple[ConditionedLayer, Place]]:
    """Yield the layers of a chain with the states before and behind them; none without states."""
    if states:
        yield from zip(layers, itertools.pairwise(states), strict=True)


def least_sums(bounds: Sequence[LayerBounds]) -> Floats:
    """For (first, last) what the cheapest chain takes at least, infinite where last < first.

    Args:
        bounds: Of each layer; equal layers may be one object.
    """
    numbers, links = _distinct_runs(bounds)
    chains: list[Floats] = []
    for before, layer in links:
        enters = chains[before] if before >= 0 else layer.arriving_s
        chains.append((enters[:, None] + layer.loop_s).min(axis=0))
    ends = [float((c + k.layer.returning_s).min()) for c, k in zip(chains, links, strict=True)]
    return np.array([*ends, np.inf])[numbers]


class _Link(NamedTuple, Generic[T]):
    """A run of layers: one that is shorter by its last layer, -1 for none, and that layer."""

    before: int
    layer: T


def _distinct_runs(
    layers: Sequence[T], wanted: Bools | None = None
) -> tuple[NDArray[np.int64], list[_Link[T]]]:
    """For (first, last) the number of the run, -1 where last < first; and the runs.

    With `wanted`, only those, and what they begin with.
    """
    count = len(layers)
    numbers = np.full((count, count), -1)
    links: list[_Link[T]] = []
    known: dict[tuple[int, T], int] = {}
    for first in range(count):
        before = -1
        ends = range(first, count) if wanted is None else np.flatnonzero(wanted[first])
        for last in range(first, int(max(ends, default=-1)) + 1):
            key = (before, layers[last])
            if key not in known:
                known[key] = len(links)
                links.append(_Link(before, layers[last]))
            before = numbers[first, last] = known[key]
    return numbers, links


def _layers_of(links: Sequence[_Link[ConditionedLayer]]) -> list[tuple[ConditionedLayer, ...]]:
    """The layers of each run, in order."""
    found: list[tuple[ConditionedLayer, ...]] = []
    for before, layer in links:
        found.append((*(found[before] if before >= 0 else ()), layer))
    return found


def _paths(links: Sequence[_Link[ConditionedLayer]], matters: Bools) -> list[tuple[int, ...]]:
    """States of the cheapest chain of runs that matter; empty for others, or if there is none."""
    chains: list[_Chain] = []
    for before, layer in links:
        chains.append(_extended(chains[before], layer) if before >= 0 else _start(layer))
    ended = [_ended(chain, link.layer) for chain, link in zip(chains, links, strict=True)]
    return [
        path if m and np.isfinite(cost) else ()
        for (cost, path), m in zip(ended, matters.tolist(), strict=True)
    ]


def entries(layers: Sequence[ConditionedLayer], first: int, states: Sequence[int]) -> list[Entry]:
    """The plans of the layers of a chain whose entries are exact."""
    chain = _steps(layers[first : first + len(states) - 1], states)
    found = (layer.entry(*place) for layer, place in chain)
    return [entry for entry in found if entry is not None]


def _summed(
    numbers: NDArray[np.int64],
    links: Sequence[_Link[ConditionedLayer]],
    paths: Sequence[tuple[int, ...]],
) -> RunCosts:
    names = ("cost_s", "loop_s", "gather_s", "once_s")
    names += ("resident_bytes", "microbatch_bytes", "temporary_bytes")
    sums = {name: np.full(len(links) + 1, np.inf) for name in names}
    for n, (layers, path) in enumerate(zip(_layers_of(links), paths, strict=True)):
        if not path:
            continue
        plans = entries(layers, 0, path)
        memory = joint_footprint([plan.memory for plan in plans])
        gather_s = sum(gathers(layers, 0, -1, path))
        count = layers[0].layer.piece.num_microbatches
        sums["cost_s"][n] = sum(plan.cost_s for plan in plans) + count * gather_s
        sums["gather_s"][n] = gather_s
        sums["loop_s"][n] = sum(plan.loop_s for plan in plans)
        sums["once_s"][n] = sum(plan.once_s for plan in plans)
        sums["resident_bytes"][n] = memory.resident_bytes
        sums["microbatch_bytes"][n] = memory.microbatch_bytes
        sums["temporary_bytes"][n] = memory.temporary_bytes
    # Number -1, of what is no run, is the last one: infinite.
    return RunCosts(**{name: values[numbers] for name, values in sums.items()})
