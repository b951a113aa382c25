"""Plans of layers that several searches share, with pins of layouts or without."""

from __future__ import annotations

from collections.abc import Mapping

from meshwise.inter.cost_table.layer_records import LayerRecords
from meshwise.inter.cost_table.variant_costs import LayerTimes, VariantCosts
from meshwise.inter.search.findings import Findings
from meshwise.inter.search.finishing import NamedLayers
from meshwise.inter.search.known_layers import KnownLayers
from meshwise.intra.options import IntraOptions
from meshwise.planner.pinned_layers import PinnedCosts, PinnedSource
from meshwise.trace.layers.layering import Layering


class SharedPlans:
    """The plans of one step's layers; each search adds to them.

    Attributes:
        layers: The layers.
        options: How they are planned.
        times: Tells how long planned layers take; None: the model does.
        records: What was found out about layers before; None: nothing.
        known: What plans say of layers.
    """

    def __init__(
        self,
        layers: Layering,
        options: IntraOptions,
        times: LayerTimes | None = None,
        records: LayerRecords | None = None,
    ) -> None:
        """Begin without any plan."""
        self.layers, self.options = layers, options
        self.times, self.records = times, records
        self.known = KnownLayers()
        self._findings: dict[VariantCosts, Findings] = {}
        self._known: dict[frozenset[str], tuple[NamedLayers, VariantCosts]] = {}

    def of(self, pins: Mapping[str, object]) -> tuple[NamedLayers, VariantCosts]:
        """Return the layers with pinned layouts, and their plans.

        Args:
            pins: Pins of layouts by pattern; equal patterns have equal pins.

        Raises:
            PinError: a pattern names nothing in the step.
        """
        key = frozenset(pins)
        if key not in self._known:
            if pins:
                source = PinnedSource(self.layers, pins)
                costs = PinnedCosts(source, self.options, pins, self.times, self.records)
                self._known[key] = source, costs
            else:
                free = VariantCosts(self.layers, self.options, self.times, self.records)
                self._known[key] = self.layers, free
        return self._known[key]

    def findings(self, costs: VariantCosts, num_devices: int) -> Findings:
        """Return what searches found out and hand on.

        Args:
            costs: Plans of layers, of `of`.
            num_devices: Of the cluster.
        """
        if costs not in self._findings:
            self._findings[costs] = Findings(costs, num_devices)
        return self._findings[costs]
