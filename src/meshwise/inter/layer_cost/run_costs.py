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
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from meshwise.inter.layer_cost.layer_network import LayerNetwork
from meshwise.inter.layer_cost.layer_record import LayerBounds
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


class _Chains(NamedTuple):
    """Cheapest chains through a run of layers, one for each state after it.

    Attributes:
        cost: Seconds of a step at the price of memory, with the gather before the first layer,
            without the one after the last.
        enters: The state before the last layer.
    """

    cost: Floats
    enters: NDArray[np.int64]


def cheapest_states(layers: Sequence[ConditionedLayer], first: int, last: int) -> tuple[int, ...]:
    """Return the states of the cuts of the cheapest chain over known entries and bounds.

    Args:
        layers: All layers, in order.
        first: First layer of the chain.
        last: Last layer of the chain.
    """
    chains: list[_Chains] = []
    for layer in layers[first : last + 1]:
        chains.append(_extended(chains[-1] if chains else None, layer))
    states = [_ended(chains[-1], layers[last])[1]]
    for chain in reversed(chains):
        states.append(int(chain.enters[states[-1]]))
    return tuple(reversed(states))


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


def _extended(before: _Chains | None, layer: ConditionedLayer) -> _Chains:
    """Return chains that are longer by a layer; None: they are of that layer alone."""
    if before is None:
        cost = layer.layer.piece.num_microbatches * layer.layer.arriving_s
    else:
        cost = before.cost
    total = cost[:, None] + layer.bound_s
    enters = total.argmin(axis=0)
    return _Chains(total[enters, np.arange(len(enters))], enters)


def _ended(chains: _Chains, last: ConditionedLayer) -> tuple[float, int]:
    """Return what the cheapest of some chains that end with one layer costs, and its last state."""
    total = chains.cost + last.layer.piece.num_microbatches * last.layer.returning_s
    best = int(np.argmin(total))
    return float(total[best]), best


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
            chosen = _chosen(links, matters)
            used = [(links[run].layer, (enters, leaves)) for run, enters, leaves in chosen.steps]
            missing = [(layer, place) for layer, place in used if not layer.is_exact[place]]
            if not missing:
                break
            threads.sharpen(list(dict.fromkeys(missing)))
    if beside is not None:
        beside.plan([(layer.layer, layer.choice(*place)) for layer, place in used])
    return _summed(numbers, links, chosen)


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


class _Step(NamedTuple):
    """One layer of a cheapest chain, with the states at its cuts.

    Attributes:
        run: The number of the run of layers that ends with it.
        enters: State before the layer.
        leaves: State after it.
    """

    run: int
    enters: int
    leaves: int


class _Chosen(NamedTuple):
    """The cheapest chains of runs.

    Attributes:
        steps: The layers of all chains, each after the one before it; a beginning that chains share
            stands there once.
        ends: For each run its last state; -1 if it does not matter or has no chain.
    """

    steps: list[_Step]
    ends: list[int]


def _chosen(links: Sequence[_Link[ConditionedLayer]], matters: Bools) -> _Chosen:
    """Return the cheapest chains of runs that matter."""
    chains: list[_Chains] = []
    for before, layer in links:
        chains.append(_extended(chains[before] if before >= 0 else None, layer))
    ends: list[int] = []
    steps: dict[tuple[int, int], _Step] = {}
    for run, (chain, link) in enumerate(zip(chains, links, strict=True)):
        cost_s, leaves = _ended(chain, link.layer) if matters[run] else (math.inf, -1)
        ends.append(leaves if cost_s < math.inf else -1)
        # Back from the end, until a step that an earlier chain has.
        at, new = (run, ends[-1]), list[_Step]()
        while min(at) >= 0 and at not in steps:
            new.append(_Step(at[0], int(chains[at[0]].enters[at[1]]), at[1]))
            at = (links[at[0]].before, new[-1].enters)
        steps.update(((step.run, step.leaves), step) for step in reversed(new))
    return _Chosen(list(steps.values()), ends)


def entries(layers: Sequence[ConditionedLayer], first: int, states: Sequence[int]) -> list[Entry]:
    """The plans of the layers of a chain whose entries are exact."""
    chain = zip(layers[first : first + len(states) - 1], itertools.pairwise(states), strict=True)
    found = (layer.entry(*place) for layer, place in chain)
    return [entry for entry in found if entry is not None]


class _Total(NamedTuple):
    """What the layers of a chain take together.

    Attributes:
        cost_s, loop_s, once_s: Seconds of a step, as `Entry` has them.
        resident_bytes, microbatch_bytes, temporary_bytes: What one device holds.
        arriving_s: Seconds to gather one micro-batch's activation.
    """

    cost_s: float
    loop_s: float
    once_s: float
    resident_bytes: int
    microbatch_bytes: int
    temporary_bytes: int
    arriving_s: float

    def and_then(self, entry: Entry) -> _Total:
        """Return what the chain takes with one more layer."""
        memory = entry.memory
        return _Total(
            cost_s=self.cost_s + entry.cost_s,
            loop_s=self.loop_s + entry.loop_s,
            once_s=self.once_s + entry.once_s,
            resident_bytes=self.resident_bytes + memory.resident_bytes,
            microbatch_bytes=self.microbatch_bytes + memory.microbatch_bytes,
            temporary_bytes=max(self.temporary_bytes, memory.temporary_bytes),
            arriving_s=self.arriving_s,
        )


def _summed(
    numbers: NDArray[np.int64], links: Sequence[_Link[ConditionedLayer]], chosen: _Chosen
) -> RunCosts:
    totals: dict[tuple[int, int], _Total] = {}
    for run, enters, leaves in chosen.steps:
        before, layer = links[run]
        if before >= 0:
            total = totals[before, enters]
        else:
            total = _Total(0.0, 0.0, 0.0, 0, 0, 0, float(layer.layer.arriving_s[enters]))
        entry = layer.entry(enters, leaves)
        assert entry is not None, "a chain has a layer without a plan"
        totals[run, leaves] = total.and_then(entry)
    names = [field.name for field in fields(RunCosts)]
    sums = {name: np.full(len(links) + 1, np.inf) for name in names}
    for run, leaves in enumerate(chosen.ends):
        if leaves < 0:
            continue
        layer, total = links[run].layer.layer, totals[run, leaves]
        gather_s = total.arriving_s + float(layer.returning_s[leaves])
        found = total._asdict() | {
            "cost_s": total.cost_s + layer.piece.num_microbatches * gather_s,
            "gather_s": gather_s,
        }
        for name in names:
            sums[name][run] = found[name]
    # Number -1, of what is no run, is the last one: infinite.
    return RunCosts(**{name: values[numbers] for name, values in sums.items()})
