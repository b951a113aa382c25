"""The findings of searches over the same layers: each search begins with those before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from meshwise.inter.cost_table.second_process import SecondProcess
from meshwise.inter.cost_table.variant import Variant
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.search.closer_look import CloserLook
from meshwise.inter.search.lazy_table import LazyTable
from meshwise.inter.search.run_needs import KnownNeeds
from meshwise.inter.stages.submeshes import StageSubmesh


@dataclass(slots=True, eq=False)
class Findings:
    """The findings of searches over one step's layers on one cluster.

    Attributes:
        costs: Plans the layers.
        num_devices: The devices of the cluster.
        closer: Looks at single layers.
        needs: Gives the least needs of runs of layers.
    """

    costs: VariantCosts
    num_devices: int
    closer: CloserLook = field(init=False)
    needs: KnownNeeds = field(init=False)
    _space: object = field(init=False, default=None)
    _tables: dict[tuple[int, int], LazyTable] = field(
        init=False, default_factory=dict[tuple[int, int], LazyTable]
    )

    def __post_init__(self) -> None:
        self.closer = CloserLook(self.costs, self.num_devices)
        self.needs = KnownNeeds(self.costs)

    def table(
        self,
        submeshes: Sequence[StageSubmesh],
        variants: Sequence[tuple[Variant, ...]],
        num_microbatches: int,
        *,
        bounds_of: int,
        is_cautious: bool,
        beside: SecondProcess,
        report: Callable[[str], object],
    ) -> LazyTable:
        """Return the costs of stages; the arguments are those of `LazyTable`.

        The table may have served another search, with more or less memory left free.  Only tables
        of the last space of stages are kept: they are large.

        Raises:
            TraceError: the step does not separate into so many micro-batches.
        """
        places = tuple(replace(m, memory_bytes=0.0, reserved_bytes=0.0) for m in submeshes)
        space = (places, tuple(variants), is_cautious)
        if space != self._space:
            self._space, self._tables = space, {}
        key = num_microbatches, bounds_of
        if key in self._tables:
            self._tables[key].serve(submeshes, beside, report)
        else:
            self._tables[key] = LazyTable(
                self.costs,
                submeshes,
                variants,
                num_microbatches,
                bounds_of=bounds_of,
                is_cautious=is_cautious,
                beside=beside,
                report=report,
            )
        return self._tables[key]
