"""One search over several meshes: what it says of its plan holds for all of them.

First the cheapest plan of each mesh is found without a limit of memory; its bound says whether
the mesh can be better than the best plan known.  Only where it can, plans that fit are searched,
the most promising mesh first, and then those of the named methods, which restrict the same
problem and so have bounds of their own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from meshwise.baselines.methods import BASELINES, loosened, restriction_of
from meshwise.cluster.mesh import LogicalMesh
from meshwise.errors import InfeasibleError
from meshwise.graph.graph import Graph
from meshwise.intra.evaluators import Evaluators
from meshwise.intra.limit.judged import JudgedChoice
from meshwise.intra.limit.refusal import TooLargeError, smallest_refusal, too_large
from meshwise.intra.options import IntraOptions, IntraResult
from meshwise.intra.plan_graph import TIED, Prepared, free_answer, planned, prepared, relative_gap
from meshwise.intra.price import step_time_s
from meshwise.intra.regions import Region
from meshwise.system.progress import say
from meshwise.units import bytes_text

# Two costs are equal if no more than rounding lies between.
_SLACK = 1e-9
# A method whose cheapest plan holds so much more than the smallest plan is not squeezed further.
_FAR = 1.1
# Methods that treat all axes alike: users have them on `flat_shapes`, if any of these is tried.
_FLAT = frozenset({"DataParallel", "Zero2", "Zero3"})
OPTIMAL, BOUNDED, TIME_LIMIT = "optimal", "bounded", "time limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshPlace:
    """A graph on a mesh, with what is asked of its plan.

    Attributes:
        graph: The graph.
        mesh: Where it runs.
        batch_dims: Positions among the graph's inputs -> the batch dim.
        options: As for `plan_graph`.
        parts: The regions of the graph.
        evaluators: That know what was computed for other restrictions and places.
    """

    graph: Graph
    mesh: LogicalMesh
    batch_dims: Mapping[int, int]
    options: IntraOptions
    parts: tuple[Region, ...]
    evaluators: Evaluators = field(default_factory=Evaluators)

    def restricted(self, name: str, *, loosely: bool = False) -> MeshPlace | None:
        """Return the same place under the restrictions of a named method.

        Args:
            name: Name of the method.
            loosely: Allow the all-gather that some steps need.

        Returns:
            None if the method is not for the mesh, or needs no loosening.
        """
        if name == "Megatron" and len(self.mesh.sizes) != 2:
            return None
        restriction = restriction_of(name, self.graph, self.mesh, self.batch_dims)
        if loosely:
            loose = loosened(restriction)
            if loose is None:
                return None
            restriction = loose
        options = dataclasses.replace(self.options, restriction=restriction)
        return dataclasses.replace(self, options=options)

    @property
    def mesh_text(self) -> str:
        """The mesh, for display."""
        return f"mesh {'x'.join(map(str, self.mesh.sizes)) or '1'}"

    def prepared(self) -> Prepared:
        """Return the cheapest plan without a limit of memory.

        Raises:
            InfeasibleError: no plan satisfies the restrictions.
        """
        return prepared(self.graph, self.mesh, self.options, self.parts, self.evaluators)

    def price_s(self, result: IntraResult) -> float:
        """Return what a plan really costs: a copy that several users share is made once."""
        objective = self.options.objective
        return step_time_s(
            self.graph, result.decision, self.mesh, objective=objective, parts=self.parts
        )


def flat_shapes(num_hosts: int, devices_per_host: int) -> tuple[tuple[int, ...], ...]:
    """Return the meshes of methods that treat all axes alike: one axis, or hosts and their devices.

    On the second one a collective runs inside hosts and then between them, with less latency.

    Args:
        num_hosts: Number of hosts.
        devices_per_host: Devices of each.
    """
    flat = (num_hosts * devices_per_host,)
    return (
        (flat, (num_hosts, devices_per_host)) if min(num_hosts, devices_per_host) > 1 else (flat,)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundOnMesh:
    """The best plan of a search.

    Attributes:
        place: Number of its place.
        result: The plan; its gap, status and space are those of the whole search.
        price_s: What the plan really costs.
    """

    place: int
    result: IntraResult
    price_s: float


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A place that is prepared, and not yet searched.

    Attributes:
        number: Its number.
        place: The place.
        made: Its cheapest plan without a limit of memory.
    """

    number: int
    place: MeshPlace
    made: Prepared

    @cached_property
    def free(self) -> JudgedChoice:
        """That plan, with its peak."""
        return free_answer(self.made)

    @property
    def fits(self) -> bool:
        """Whether that plan fits."""
        limit = self.place.options.memory_bytes
        return limit is None or self.free.num_bytes <= limit


def _mesh(place: MeshPlace) -> str:
    return f"mesh {'x'.join(map(str, place.mesh.sizes))}"


def _nth(place: MeshPlace, rank: int, count: int) -> str:
    return f"{_mesh(place)} ({rank + 1} of {count})"


class Search:
    """A search that goes on over more places with what it knows.

    Attributes:
        best: The best plan so far.
        num_places: How many places were searched.
        least_s: No plan costs less, whatever the memory.
    """

    def __init__(
        self,
        flat: Collection[tuple[int, ...]] = (),
        report: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Begin a search.

        Args:
            flat: Shapes of meshes; where one of them is searched, methods that treat all axes alike
                are tried on these only.
            report: Is told of progress.
        """
        self._flat, self._report = flat, report
        self.best: FoundOnMesh | None = None
        # No plan that fits costs less, whatever the place.
        self._bound_s = math.inf
        # No plan costs less, whatever the memory; and what the cheapest choices without limit cost.
        self.least_s = self._free_s = math.inf
        self.num_places = 0
        self._status: set[str] = set()
        self._is_tied = False
        self._refusals: list[InfeasibleError] = []

    def prepared(self, places: Sequence[MeshPlace]) -> list[Waiting]:
        """Number some places, and find the cheapest plan of each without a limit of memory.

        Args:
            places: They are numbered as they come.

        Returns:
            Those that have one, the most promising first.
        """
        first = self.num_places
        self.num_places += len(places)
        waiting: list[Waiting] = []
        for number, place in enumerate(places, first):
            self._report(f"{_nth(place, number - first, len(places))}: choices and costs")
            try:
                made = place.prepared()
            except InfeasibleError as error:
                self._refusals.append(error)
                continue
            self._is_tied |= made.space == TIED
            self.least_s = min(self.least_s, made.bound_s)
            self._free_s = min(self._free_s, made.free.cost)
            waiting.append(Waiting(number=number, place=place, made=made))
        return sorted(waiting, key=lambda item: (item.made.bound_s, item.number))

    def over(self, places: Sequence[MeshPlace]) -> None:
        """Search among all plans of some places; they are numbered as they come."""
        self.run(self.prepared(places))

    def run(self, waiting: Sequence[Waiting]) -> None:
        """Search among all plans of places that are prepared."""
        for rank, item in enumerate(waiting):
            self._report(f"{_nth(item.place, rank, len(waiting))}: searching")
            self._bound_s = min(self._bound_s, self._tried(item))
        promising = [item for item in waiting if not self._is_beaten(item.made.bound_s)]
        if promising and not self._is_optimal():
            say(f"searching the plans of {', '.join(BASELINES)}")
            flat = {item.number for item in waiting if item.place.mesh.sizes in self._flat}
            for item in sorted(promising, key=lambda item: item.number):
                self._report(f"{_mesh(item.place)}: plans of {', '.join(BASELINES)}")
                for name in BASELINES:
                    if not flat or item.number in flat or name not in _FLAT:
                        self._try_method(item.place, item.number, name)

    def _tried(self, item: Waiting) -> float:
        """Look for a better plan of a place; a bound of all its plans that fit."""
        bound_s = item.made.bound_s
        if self._is_beaten(bound_s):
            return bound_s
        limit = item.place.options.memory_bytes
        if limit is not None and not item.fits:
            say(
                f"{item.place.mesh_text}: the fastest plan holds {bytes_text(item.free.num_bytes)} "
                f"a device; searching one within {bytes_text(limit)}"
            )
        try:
            result = self._planned(item.made, item.free)
        except TooLargeError as error:
            self._refusals.append(error)
            return math.inf if error.is_proved else bound_s
        self._keep(item.place, item.number, result)
        self._status.add(result.status)
        return max(result.bound_s, bound_s)

    def _try_method(self, place: MeshPlace, number: int, name: str) -> None:
        """Look for a better plan among those of a named method: never is one of them better."""
        wider = place.restricted(name, loosely=True)
        try:
            # Each plan of the method is one of the wider problem too.
            loose = None if wider is None else wider.prepared()
        except InfeasibleError as error:
            self._refusals.append(error)
            return
        if loose is not None and self._is_beaten(loose.bound_s):
            return
        strict = place.restricted(name)
        if strict is None or self._squeezed(strict, number, strict.prepared) or loose is None:
            return
        self._squeezed(place, number, lambda: loose)

    def _squeezed(self, place: MeshPlace, number: int, made: Callable[[], Prepared]) -> bool:
        """Look for a better plan of a method; whether it has plans that fit, or is beaten.

        Args:
            place: The place.
            number: Number of the place.
            made: Gives the cheapest plan of the method.
        """
        try:
            found = made()
            if not self._is_beaten(found.bound_s):
                free = free_answer(found)
                self._refuse_far(place, free)
                self._keep(place, number, self._planned(found, free))
        except InfeasibleError as error:
            self._refusals.append(error)
            return False
        return True

    def _refuse_far(self, place: MeshPlace, free: JudgedChoice) -> None:
        """Refuse a method that holds far more than the smallest plan, where none fits yet.

        Raises:
            TooLargeError: it does; squeezing it is not tried.
        """
        limit = place.options.memory_bytes
        if limit is None or free.num_bytes <= limit or self.best is not None:
            return
        if free.num_bytes > _FAR * self._smallest_bytes():
            raise too_large(limit, free.peak, is_proved=False)

    def _planned(self, made: Prepared, free: JudgedChoice | None = None) -> IntraResult:
        """Return the cheapest plan of a place that fits, as far as it matters."""
        return planned(made, free, below_s=self._below_s(), smallest_bytes=self._smallest_bytes())

    def _smallest_bytes(self) -> float:
        """Return the peak of the smallest plan that was refused."""
        large = (e.smallest.num_bytes for e in self._refusals if isinstance(e, TooLargeError))
        return min(large, default=math.inf)

    def _keep(self, place: MeshPlace, number: int, result: IntraResult) -> None:
        price_s = place.price_s(result)
        best = self.best
        if best is None or (price_s, number) < (best.price_s, best.place):
            self.best = FoundOnMesh(place=number, result=result, price_s=price_s)

    def _is_beaten(self, bound_s: float) -> bool:
        """Return whether what is bounded so costs more than the best plan."""
        return self.best is not None and bound_s > self._cost_s() * (1 + _SLACK)

    def _cost_s(self) -> float:
        """Return what the best plan costs in the problem, in which the bounds hold."""
        assert self.best is not None
        return self.best.result.objective_s

    def _below_s(self) -> float:
        """Return what a plan must be cheaper than to matter."""
        return math.inf if self.best is None else self._cost_s()

    @property
    def is_tight(self) -> bool:
        """Whether more memory may give a cheaper plan."""
        return self.best is None or self._cost_s() > self._free_s * (1 + _SLACK)

    def _is_optimal(self) -> bool:
        return self.best is not None and self._bound_s >= self._cost_s() * (1 - _SLACK)

    def found(self) -> FoundOnMesh:
        """Return the best plan, with what holds of all places.

        Raises:
            InfeasibleError: no plan was found that fits.
        """
        if self.best is None:
            raise smallest_refusal(self._refusals)
        result, cost = self.best.result, self._cost_s()
        bound = min(self._bound_s, cost)
        status = (
            OPTIMAL if self._is_optimal() else TIME_LIMIT if TIME_LIMIT in self._status else BOUNDED
        )
        result = dataclasses.replace(
            result,
            bound_s=bound,
            gap=0.0 if status == OPTIMAL else relative_gap(cost, bound),
            status=status,
            space=TIED if self._is_tied else result.space,
            conceded=(),
        )
        return dataclasses.replace(self.best, result=result)
