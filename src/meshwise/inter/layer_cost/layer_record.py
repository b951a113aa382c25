"""What was found out about one layer on one mesh, so that nothing of it is computed twice.

All of it follows from the layer, the mesh and the options of planning alone.  So a record may be
kept in a file: what a search reads from it is what the search would compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from meshwise.inter.layer_cost.footprint import Footprint
from meshwise.kernels.arrays import Floats

# A choice for each class of nodes of the layer, by number.
Choice: TypeAlias = tuple[int, ...]
# An entry of a cost matrix: the state that enters and the state that leaves.
Place: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerBounds:
    """Lower bounds of all plans of a layer; equal only if they are one object.

    Attributes:
        loop_s: Seconds of all micro-batches, by (states that enter, states that leave).
        arriving_s: `arriving_s` of `LayerNetwork`, but for all micro-batches; by state that enters.
        returning_s: Likewise `returning_s`, by state that leaves.
        resident_bytes: Bytes that one device holds all the time.
    """

    loop_s: Floats
    arriving_s: Floats
    returning_s: Floats
    resident_bytes: float


class Raised(NamedTuple):
    """The bound of an entry, by message passing with its states fixed.

    Attributes:
        bound_s: No plan costs less.
        choice: A plan that costs hardly more; None if none is known.
        cost_s: What it costs.
    """

    bound_s: float
    choice: Choice | None
    cost_s: float


class Solved(NamedTuple):
    """The answer of the solver for an entry.

    Attributes:
        choice: The plan; None if there is none.
        cost_s: What it costs.
        proved_s: No plan costs less.
    """

    choice: Choice | None
    cost_s: float
    proved_s: float


@dataclass(slots=True, kw_only=True)
class PriceRecord:
    """What is known at one price of memory.

    Attributes:
        bound_s: Bounds of all entries, by message passing with free states; None: unknown.
        raised: Bounds of single entries, by message passing with their states fixed.
        relaxed_s: Bounds of entries that reductions and bounds, in turn, do not settle.
        solved: Entries that the solver, or reductions and bounds, planned.
    """

    bound_s: Floats | None = None
    raised: dict[Place, Raised] = field(default_factory=dict[Place, Raised])
    relaxed_s: dict[Place, float] = field(default_factory=dict[Place, float])
    solved: dict[Place, Solved] = field(default_factory=dict[Place, Solved])

    def add(self, other: PriceRecord) -> None:
        """Know what another record of the same layer at the same price knows."""
        self.bound_s = other.bound_s if self.bound_s is None else self.bound_s
        self.raised |= other.raised
        self.relaxed_s |= other.relaxed_s
        self.solved |= other.solved


class PriceKey(NamedTuple):
    """What entries of a layer depend on besides the layer.

    Attributes:
        seconds_per_byte: As `BytePrice` has it.
        in_flight: As `BytePrice` has it.
        scratch_share: As `BytePrice` has it.
        exact: Whether entries are proved.
        seed: Of the solver.
    """

    seconds_per_byte: float
    in_flight: float
    scratch_share: float
    exact: bool
    seed: int


class PlanFacts(NamedTuple):
    """What a plan takes and holds.

    Attributes:
        loop_s: Seconds of all micro-batches of a step, by the model.
        once_s: Seconds of what runs once a step, by the model.
        memory: What one device holds.
    """

    loop_s: float
    once_s: float
    memory: Footprint


@dataclass(slots=True, kw_only=True, eq=False)
class LayerRecord:
    """What is known of one layer on one mesh.

    Attributes:
        is_possible: Whether every operator has a strategy on the mesh; None: unknown.
        nodes: Classes of nodes that decide the states that enter and leave, as `Boundary` has
            them; None: unknown.
        bounds: Of all plans; None: unknown.
        plans: Plans by their choices.
        prices: What is known at prices of memory.
    """

    is_possible: bool | None = None
    nodes: tuple[int, int] | None = None
    bounds: LayerBounds | None = None
    plans: dict[Choice, PlanFacts] = field(default_factory=dict[Choice, PlanFacts])
    prices: dict[PriceKey, PriceRecord] = field(default_factory=dict[PriceKey, PriceRecord])

    def at(self, key: PriceKey) -> PriceRecord:
        """Return what is known at a price, to be added to."""
        return self.prices.setdefault(key, PriceRecord())

    def add(self, other: LayerRecord) -> None:
        """Know what another record of the same layer knows."""
        self.is_possible = other.is_possible if self.is_possible is None else self.is_possible
        self.nodes = other.nodes if self.nodes is None else self.nodes
        self.bounds = other.bounds if self.bounds is None else self.bounds
        self.plans |= other.plans
        for key, price in other.prices.items():
            self.at(key).add(price)

    def only(self, key: PriceKey) -> LayerRecord:
        """Return what is known at one price alone."""
        return replace(self, prices={key: self.at(key)})

    def with_in_flight(self, in_flight: float) -> LayerRecord:
        """Return what is known at prices that count so many micro-batches in flight alone."""
        some = {key: price for key, price in self.prices.items() if key.in_flight == in_flight}
        return replace(self, prices=some)

    def size(self) -> int:
        """Return how much is known; it grows with each fact."""
        marks = (self.is_possible, self.nodes, self.bounds)
        found = sum(mark is not None for mark in marks) + len(self.plans)
        return found + sum(map(_size, self.prices.values()))


def _size(price: PriceRecord) -> int:
    parts: tuple[Mapping[Place, object], ...] = (price.raised, price.relaxed_s, price.solved)
    return (price.bound_s is not None) + sum(map(len, parts))
