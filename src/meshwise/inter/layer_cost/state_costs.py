"""What one layer costs on one mesh, given the states of its two cuts.

A state is the layout of the activation at a cut and of its cotangent.  The cost of a layer is a
matrix over (state that enters, state that leaves), but few entries matter: a bound on every entry
comes from one run of message passing, and an entry is looked at more closely each time a cheapest
chain of layers needs it: by messages for its states, then by reductions and bounds of what is left,
and in the end it is planned (`bound_level` has what is guessed before).

Source: docs/decisions/0011; the bound is that of `assignment.bounds.messages`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from meshwise.assignment.bounds.conditional import ConditionalBounds
from meshwise.assignment.problem import Problem, Sums, objective
from meshwise.assignment.relaxed import Relaxed
from meshwise.assignment.solve import solve_relaxed
from meshwise.assignment.solver_time import SolverTime
from meshwise.inter.layer_cost.bound_level import BoundLevel
from meshwise.inter.layer_cost.footprint import Footprint
from meshwise.inter.layer_cost.layer_network import LayerNetwork
from meshwise.inter.layer_cost.layer_record import Choice, Place, PriceKey, Raised, Solved
from meshwise.kernels.arrays import Floats
from meshwise.plan.decision import GraphDecision


class Left(NamedTuple):
    """What reductions and bounds leave of an entry, for the solver.

    Attributes:
        bound_s: No plan costs less.
        rest: What is left; None where the record has the bound.
    """

    bound_s: float
    rest: Relaxed | None


# What a closer look at an entry shows; nothing where the entry is exact.
Look: TypeAlias = Raised | Left | Solved | None

# How much of the scratch of operators counts: layers of a stage run one at a time, so that only one
# layer's is held.
SCRATCH_SHARE = 0.1
# A choice this close to the bound is a best one, up to the rounding of costs to whole units.
_TIGHT = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One layer on one mesh with given states, planned.

    Attributes:
        cost_s: Objective: seconds of a step, memory at its price included.
        loop_s: Seconds of all micro-batches of a step.
        once_s: Seconds of what runs once a step.
        memory: What one device holds.
        layer: The layer on its mesh.
        choice: The plan as a choice for each class of nodes.
    """

    cost_s: float
    loop_s: float
    once_s: float
    memory: Footprint
    layer: LayerNetwork
    choice: Choice

    @property
    def decision(self) -> GraphDecision:
        """The plan of the layer's graph; made once."""
        return self.layer.decision(self.choice)


@dataclass(frozen=True, slots=True, kw_only=True)
class BytePrice:
    """What a byte costs while a layer is planned: plans that hold less become cheaper.

    Attributes:
        seconds_per_byte: Of one device, for a step.
        in_flight: Micro-batches whose activations count.
        scratch_share: How much of the scratch of operators counts.
    """

    seconds_per_byte: float = 0.0
    in_flight: float = 1.0
    scratch_share: float = SCRATCH_SHARE


def price_key(price: BytePrice, seed: int, *, exact: bool = False) -> PriceKey:
    """Return where a record has what is known at a price.

    Args:
        price: Of memory.
        seed: Of the solver.
        exact: Whether entries are proved.
    """
    return PriceKey(
        price.seconds_per_byte, price.in_flight, price.scratch_share, exact=exact, seed=seed
    )


class ConditionedLayer:
    """One layer on one mesh at one price of memory.

    Attributes:
        bound_s: About what a plan costs at least, (states that enter, states that leave); what the
            plan costs where `is_exact`.  Without proofs a guess is added, so that it may be above
            the best plan.
        proved_s: No plan costs less.
        is_exact: Which entries were solved.
    """

    def __init__(
        self,
        layer: LayerNetwork,
        price: BytePrice,
        *,
        exact: bool = True,
        time: SolverTime | None = None,
        seed: int = 0,
        times: Callable[[GraphDecision], tuple[float, float]] | None = None,
    ) -> None:
        """Bound all entries.

        Args:
            layer: The layer on its mesh.
            price: Of memory.
            exact: Whether entries are proved; if not, reductions and bounds must do, and a few
                entries may be dearer than they could be.
            time: What the solver may take for all entries, and whatever else shares it; None: as
                long as counted work lasts.
            seed: Of the solver.
            times: Seconds of a plan, of all micro-batches and of what runs once a step; None: as
                they are modelled.  Plans are chosen by the model in any case.
        """
        self.layer = layer
        self.times = times
        self.price = price
        self.seed, self.exact = seed, exact
        self.time = time or SolverTime()
        self._record = layer.record.at(price_key(price, seed, exact=exact))
        if self._record.bound_s is None:
            self._record.bound_s = self._bounds.of_all_pairs()
        self.bound_s = self._record.bound_s.copy()
        self.proved_s = self.bound_s.copy()
        self.is_exact = np.zeros(self.bound_s.shape, np.bool_)
        # By messages for the states of an entry, and by reductions and bounds of what is left then.
        shape = (self.bound_s.shape[0], self.bound_s.shape[1])
        self._raised = BoundLevel(shape, guesses=not exact)
        self._relaxed = BoundLevel(shape, guesses=not exact)
        self._left: dict[Place, Relaxed | None] = {}
        self._choices: dict[Place, Choice] = {}
        self._entries: dict[Place, Entry] = {}

    @cached_property
    def problem(self) -> Problem:
        """The decisions at the price of memory."""
        return _priced(self.layer, self.price)

    @cached_property
    def _bounds(self) -> ConditionalBounds:
        nodes = (self.layer.entering.node, self.layer.leaving.node)
        return ConditionalBounds(self.problem, nodes)

    def sharpen(self, enters: int, leaves: int) -> None:
        """Raise the bound of two states; where it cannot be raised, plan the layer for them."""
        place = (enters, leaves)
        self.note(place, self.look(place))

    def is_for_the_solver(self, place: Place) -> bool:
        """Whether bounds of an entry are as high as they get, so that the next look solves it."""
        return place in self._left

    def prepare(self, place: Place) -> None:
        """Make what the next look at an entry needs, so that looks of threads change nothing."""
        if not self.is_exact[place] and self._known(place) is None:
            _ = self._bounds

    def look(self, place: Place) -> Look:
        """Look at an entry more closely than before.

        After `prepare` nothing changes, so that several threads may look at entries at once.

        Args:
            place: The states.

        Returns:
            What is seen, for `note`.
        """
        if self.is_exact[place]:
            return None
        known = self._known(place)
        if known is not None:
            return known
        if not self._raised.is_known(place):
            return self._raise(place)
        if place in self._left:
            return self._solved(self._left[place] or self._rest(place))
        left = self._rest(place)
        if left.is_settled:
            return self._solved(left)
        return Left(left.bound + self._bounds.constant, left)

    def _known(self, place: Place) -> Look:
        """Return what the record has of the next look at an entry; None if it has nothing."""
        record = self._record
        if not self._raised.is_known(place):
            return record.raised.get(place)
        if place not in self._left and place in record.relaxed_s:
            return Left(record.relaxed_s[place], None)
        return record.solved.get(place)

    def _raise(self, place: Place) -> Raised:
        """Bound an entry by messages for its states; they may show its plan."""
        bound_s, choice = self._bounds.of_pair(*place)
        if choice is not None and self._has_states(choice, *place):
            cost_s = objective(self.problem, choice)
            if cost_s <= bound_s * (1 + _TIGHT):
                return Raised(bound_s, choice, cost_s)
        return Raised(bound_s, None, math.inf)

    def _rest(self, place: Place) -> Relaxed:
        with self.time.used():
            return self._bounds.relaxed(*place)

    def _solved(self, left: Relaxed) -> Solved:
        """Solve what is left of an entry."""
        with self.time.used() as left_s:
            found = solve_relaxed(left, time_limit_s=left_s, seed=self.seed, exact=self.exact)
        if not found.choice:
            return Solved(None, math.inf, found.bound)
        full = self._bounds.expand(found.choice)
        cost_s = objective(self.problem, full)
        return Solved(full, cost_s, cost_s - (found.cost - found.bound))

    def note(self, place: Place, seen: Look) -> None:
        """Remember what was seen of an entry.

        Args:
            place: The states.
            seen: What `look` returned.
        """
        if isinstance(seen, Left):
            self._record.relaxed_s[place] = seen.bound_s
            self._left[place] = seen.rest
            self._note_bound(place, self._relaxed, seen.bound_s)
        elif isinstance(seen, Solved):
            self._record.solved[place] = seen
            self._left.pop(place, None)
            self._take(place, seen)
        elif seen is not None:
            self._record.raised[place] = seen
            raised = max(seen.bound_s, float(self.bound_s[place]))
            self._note_bound(place, self._raised, raised)
            if seen.choice is not None:
                self._keep(place, seen.choice, seen.cost_s)

    def _settle(self, enters: int, leaves: int) -> None:
        """Plan the layer for two states, unless it was."""
        while not self.is_exact[enters, leaves]:
            self.sharpen(enters, leaves)

    def _note_bound(self, place: Place, level: BoundLevel, bound_s: float) -> None:
        proved = np.fmax(bound_s, self._raised.proved_s[place])
        level.proved_s[place] = proved
        self.proved_s[place] = max(proved, self.proved_s[place])
        self.bound_s[place] = self._guessed_s()[place]

    def _guessed_s(self) -> Floats:
        """About what entries cost at least that have such bounds; NaN for others."""
        found = (level.proved_s + level.gap_s for level in (self._raised, self._relaxed))
        return np.fmax(*found)

    def _has_states(self, choice: Choice, enters: int, leaves: int) -> bool:
        sides = ((self.layer.entering.node, enters), (self.layer.leaving.node, leaves))
        return all(node < 0 or choice[node] == state for node, state in sides)

    def _keep(self, place: Place, choice: Choice, cost_s: float) -> None:
        self.is_exact[place] = True
        self.bound_s[place] = cost_s
        self._choices[place] = choice

    def _take(self, place: Place, found: Solved) -> None:
        """Take the answer of the solver for an entry."""
        self.proved_s[place] = max(found.proved_s, self.proved_s[place])
        if found.choice is None:
            self.is_exact[place], self.bound_s[place] = True, np.inf
            return
        self._keep(place, found.choice, found.cost_s)
        # What a plan costs more than its bounds is added to those of states without a plan.
        for level in (self._raised, self._relaxed):
            level.note(place, found.cost_s)
        guessed_s = self._guessed_s()
        is_open = ~(np.isnan(guessed_s) | self.is_exact)
        self.bound_s[is_open] = guessed_s[is_open]

    def entry(self, enters: int, leaves: int) -> Entry | None:
        """The plan of the layer for two states; None if there is none."""
        place = (enters, leaves)
        if np.isfinite(self.bound_s[place]):
            self._settle(*place)
        if place in self._choices and place not in self._entries:
            choice = self._choices[place]
            cost_s = float(self.bound_s[place])
            self._entries[place] = planned(self.layer, choice, cost_s, self.times)
        return self._entries.get(place)

    def choice(self, enters: int, leaves: int) -> Choice:
        """The choice of the plan of an entry that exists, a choice for each class of nodes."""
        return self._choices[enters, leaves]


def planned(
    layer: LayerNetwork,
    choice: Choice,
    cost_s: float,
    times: Callable[[GraphDecision], tuple[float, float]] | None = None,
) -> Entry:
    """A layer under a choice for each class of its nodes.

    Args:
        layer: The layer on its mesh.
        choice: What is chosen.
        cost_s: Its objective.
        times: As `ConditionedLayer` has it.
    """
    loop_s, once_s, memory = layer.facts(choice)
    if times is not None:
        loop_s, once_s = times(layer.decision(choice))
    return Entry(
        cost_s=cost_s,
        loop_s=loop_s,
        once_s=once_s,
        memory=memory,
        layer=layer,
        choice=choice,
    )


def _priced(layer: LayerNetwork, price: BytePrice) -> Problem:
    if not price.seconds_per_byte:
        return layer.problem
    rate, held, sums = price.seconds_per_byte, layer.held, Sums()
    for u, cost in enumerate(layer.problem.costs):
        held_bytes = held.resident[u] + price.in_flight * held.microbatch[u]
        sums.add(u, cost + rate * (held_bytes + price.scratch_share * layer.scratch[u]))
    for pair in layer.problem.pairs:
        sums.add_pair(pair.u, pair.v, pair.cost)
    for copies, weight in ((held.copies, rate), (held.kept_copies, rate * price.in_flight)):
        for (u, v), num_bytes in copies.items():
            sums.add_pair(u, v, weight * num_bytes)
    return sums.problem()
