"""Costs of all runs of layers on one mesh, composed from the costs of single layers.

    cost(i, j) = min over states s_i .. s_(j+1) of
                     a_i[s_i] + sum over k in i..j of M_k[s_k, s_(k+1)] + r_j[s_(j+1)]

M_k is the matrix of layer k (`inter.layer_cost.state_costs`), a and r what it takes to gather an
activation that comes from another stage, and a cotangent (`inter.layer_cost.arrival`).  Entries of
M are bounds until a cheapest chain uses them; then they are solved, and the chains are found anew.
In the end every cheapest chain has exact entries only, so it is the cheapest of all.

Source: docs/decisions/0011, (min,+) products.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from meshwise.inter.layer_cost.layer_network import LayerBounds, LayerFace
from meshwise.inter.layer_cost.state_costs import Entry, EntryCosts, Place

Array = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
T = TypeVar("T")


class LayerMatrices(Protocol):
    """A layer on one mesh at one price of memory, here (`ConditionedLayer`) or elsewhere.

    What is asked of several layers at once is begun for all and then waited for, in this order.
    """

    @property
    def bound_s(self) -> Array:
        """No plan costs less, (states that enter, states that leave); exact where `is_exact`."""
        ...

    @property
    def is_exact(self) -> BoolArray:
        """Which entries were solved."""
        ...

    @property
    def is_distant(self) -> bool:
        """Whether another process has it, so that it should be asked first and heard last."""
        ...

    @property
    def face(self) -> LayerFace:
        """What neighbours see of it."""
        ...

    def sharpened(self, places: Sequence[Place]) -> Callable[[], object]:
        """Raise bounds, and where they are raised, solve."""
        ...

    def costs(self, places: Sequence[Place]) -> Callable[[], Sequence[EntryCosts | None]]:
        """What plans cost."""
        ...

    def entries(self, places: Sequence[Place]) -> Callable[[], Sequence[Entry | None]]:
        """Plans."""
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

    cost_s: Array
    loop_s: Array
    gather_s: Array
    once_s: Array
    resident_bytes: Array
    microbatch_bytes: Array
    temporary_bytes: Array


class _Chain(NamedTuple):
    """Cheapest chains from one first layer, for each state after the present one."""

    cost: Array
    path: tuple[tuple[int, ...], ...]


def cheapest_states(layers: Sequence[LayerMatrices], first: int, last: int) -> tuple[int, ...]:
    """States of the cuts of the cheapest chain over known entries and bounds."""
    chain = _start(layers[first])
    for k in range(first + 1, last + 1):
        chain = _extended(chain, layers[k])
    return _ended(chain, layers[last])[1]


def gathers(
    layers: Sequence[LayerMatrices], first: int, last: int, states: Sequence[int]
) -> tuple[float, float]:
    """Seconds to gather one micro-batch's activation that a run gets, and its cotangent."""
    arriving_s = layers[first].face.arriving_s[states[0]]
    return float(arriving_s), float(layers[last].face.returning_s[states[-1]])


def _start(layer: LayerMatrices) -> _Chain:
    face = layer.face
    total = face.num_microbatches * face.arriving_s[:, None] + layer.bound_s
    enters = total.argmin(axis=0)
    cost = total[enters, np.arange(len(enters))]
    return _Chain(cost, tuple((int(a), b) for b, a in enumerate(enters)))


def _extended(chain: _Chain, layer: LayerMatrices) -> _Chain:
    total = chain.cost[:, None] + layer.bound_s
    enters = total.argmin(axis=0)
    cost = total[enters, np.arange(total.shape[1])]
    return _Chain(cost, tuple((*chain.path[int(a)], b) for b, a in enumerate(enters)))


def _ended(chain: _Chain, last: LayerMatrices) -> tuple[float, tuple[int, ...]]:
    """Cost and states of the cheapest of some chains that end with one layer."""
    total = chain.cost + last.face.num_microbatches * last.face.returning_s
    best = int(np.argmin(total))
    return float(total[best]), chain.path[best]


def compose(layers: Sequence[LayerMatrices], wanted: BoolArray | None = None) -> RunCosts:
    """Costs of all runs.

    Args:
        layers: In order; equal layers may be the same object, and runs of equal layers cost the
            same.
        wanted: Runs that matter, (first layer, last layer); None for all.  The others come out
            with infinite cost.
    """
    numbers, links = _distinct_runs(layers, wanted)
    while True:
        paths = _paths(links)
        missing = _Asked()
        for path, run in zip(paths, _layers_of(links), strict=True):
            for layer, place in zip(run, itertools.pairwise(path), strict=False):
                if not layer.is_exact[place]:
                    missing.add(layer, place)
        if not missing.places:
            return _summed(numbers, links, paths)
        missing.answers(lambda layer, places: layer.sharpened(places))


class _Asked:
    """Places of layers that something is asked of, each once."""

    def __init__(self) -> None:
        self.layers: dict[int, LayerMatrices] = {}
        self.places: dict[int, dict[Place, None]] = {}

    def add(self, layer: LayerMatrices, place: Place) -> None:
        self.layers[id(layer)] = layer
        self.places.setdefault(id(layer), {})[place] = None

    def answers(
        self, begin: Callable[[LayerMatrices, Sequence[Place]], Callable[[], T]]
    ) -> dict[int, T]:
        """What each layer says of its places; another process works while this one does."""
        pairs = [(n, layer, list(self.places[n])) for n, layer in self.layers.items()]
        # Sorting keeps the order of those of the other process: so they are answered.
        pairs.sort(key=lambda pair: not pair[1].is_distant)
        begun = [(n, layer.is_distant, begin(layer, places)) for n, layer, places in pairs]
        begun.sort(key=lambda pair: pair[1])
        return {n: end() for n, _, end in begun}

    def by_place(
        self, begin: Callable[[LayerMatrices, Sequence[Place]], Callable[[], Sequence[T]]]
    ) -> dict[tuple[int, Place], T]:
        """What layers say of each place."""
        return {
            (n, place): said
            for n, every in self.answers(begin).items()
            for place, said in zip(self.places[n], every, strict=True)
        }


def least_sums(bounds: Sequence[LayerBounds]) -> Array:
    """For (first, last) what the cheapest chain takes at least, infinite where last < first.

    Args:
        bounds: Of each layer; equal layers may be one object.
    """
    numbers, links = _distinct_runs(bounds)
    chains: list[Array] = []
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
    layers: Sequence[T], wanted: BoolArray | None = None
) -> tuple[NDArray[np.int64], list[_Link[T]]]:
    """For (first, last) the number of the run, -1 where last < first; and the runs.

    With `wanted`, only those, and what they begin with.
    """
    count = len(layers)
    numbers = np.full((count, count), -1)
    links: list[_Link[T]] = []
    known: dict[tuple[int, int], int] = {}
    for first in range(count):
        before = -1
        ends = range(first, count) if wanted is None else np.flatnonzero(wanted[first])
        for last in range(first, int(max(ends, default=-1)) + 1):
            key = (before, id(layers[last]))
            if key not in known:
                known[key] = len(links)
                links.append(_Link(before, layers[last]))
            before = numbers[first, last] = known[key]
    return numbers, links


def _layers_of(links: Sequence[_Link[LayerMatrices]]) -> list[tuple[LayerMatrices, ...]]:
    """The layers of each run, in order."""
    found: list[tuple[LayerMatrices, ...]] = []
    for before, layer in links:
        found.append((*(found[before] if before >= 0 else ()), layer))
    return found


def _paths(links: Sequence[_Link[LayerMatrices]]) -> list[tuple[int, ...]]:
    """States of the cheapest chain of every run; empty for one that has none."""
    chains: list[_Chain] = []
    for before, layer in links:
        chains.append(_extended(chains[before], layer) if before >= 0 else _start(layer))
    ended = [_ended(chain, link.layer) for chain, link in zip(chains, links, strict=True)]
    return [path if np.isfinite(cost) else () for cost, path in ended]


def entries(layers: Sequence[LayerMatrices], first: int, states: Sequence[int]) -> list[Entry]:
    """The plans of the layers of a chain whose entries are exact."""
    chain = list(enumerate(itertools.pairwise(states), first))
    asked = _Asked()
    for k, place in chain:
        asked.add(layers[k], place)
    known = asked.by_place(lambda layer, places: layer.entries(places))
    found = [known[id(layers[k]), place] for k, place in chain]
    return [e for e in found if e is not None]


def _summed(
    numbers: NDArray[np.int64],
    links: Sequence[_Link[LayerMatrices]],
    paths: Sequence[tuple[int, ...]],
) -> RunCosts:
    names = ("cost_s", "loop_s", "gather_s", "once_s")
    names += ("resident_bytes", "microbatch_bytes", "temporary_bytes")
    sums = {name: np.full(len(links) + 1, np.inf) for name in names}
    runs = list(zip(_layers_of(links), paths, strict=True))
    asked = _Asked()
    for layers, path in runs:
        for layer, place in zip(layers, itertools.pairwise(path), strict=False):
            asked.add(layer, place)
    known = asked.by_place(lambda layer, places: layer.costs(places))
    for n, (layers, path) in enumerate(runs):
        if not path:
            continue
        places = zip(layers, itertools.pairwise(path), strict=True)
        every = [known[id(layer), place] for layer, place in places]
        plans = [costs for costs in every if costs is not None]
        memory = [plan.memory for plan in plans]
        gather_s = sum(gathers(layers, 0, -1, path))
        count = layers[0].face.num_microbatches
        sums["cost_s"][n] = sum(plan.cost_s for plan in plans) + count * gather_s
        sums["gather_s"][n] = gather_s
        sums["loop_s"][n] = sum(plan.loop_s for plan in plans)
        sums["once_s"][n] = sum(plan.once_s for plan in plans)
        sums["resident_bytes"][n] = sum(m.resident_bytes for m in memory)
        sums["microbatch_bytes"][n] = sum(m.microbatch_bytes for m in memory)
        sums["temporary_bytes"][n] = max(m.temporary_bytes for m in memory)
    # Number -1, of what is no run, is the last one: infinite.
    return RunCosts(**{name: values[numbers] for name, values in sums.items()})
