"""Memory of values that wait on a mesh for the layer that reads them.

Activations and cotangents that have arrived, sums of cotangents that are not complete, values that
skip layers, and rows of the batch whose micro-batch has not begun: no program runs with them and no
backward pass keeps them, yet they are there.  Tasks are taken in the order in which they are
dispatched; what is sent counts where it goes from then on, as in `program.memory.live_bytes`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from meshwise.graph.graph import Tensor
from meshwise.graph.layout import Layout
from meshwise.intra.shapes import local_bytes
from meshwise.pieces.neighbours import LayerEnds, Neighbours
from meshwise.plan.stage import Stage
from meshwise.program.names import Activation
from meshwise.schedules.schedule import BACKWARD, FORWARD, WEIGHT, Kind, Schedule
from meshwise.schedules.verify import running_order


def waiting_bytes(
    neighbours: Neighbours,
    stages: Sequence[Stage],
    table: Schedule,
    argument_names: Callable[[int], Sequence[str]],
) -> tuple[int, ...]:
    """Return for each stage the bytes of one device that the values that wait add to the peak.

    What waits on a mesh is counted with the first of its stages.

    Args:
        neighbours: The layers of all stages.
        stages: The stages, with what they keep of each micro-batch.
        table: Their schedule.
        argument_names: Gives the names of the arguments that the graph of a layer takes.
    """
    values = _WaitingValues(neighbours, stages, table.mesh_of_stage)
    values.add_activations()
    values.add_cotangents()
    values.add_rows(argument_names)
    found = _added_at_peak(values, stages, table)
    first = {m: s for s, m in reversed(list(enumerate(table.mesh_of_stage)))}
    return tuple(found[m] if first[m] == s else 0 for s, m in enumerate(table.mesh_of_stage))


@dataclass(frozen=True, slots=True)
class _Pass:
    """What a pass of a layer does to the values that wait, in bytes of one device.

    Attributes:
        takes: Values on its own mesh that no longer wait when it starts.
        gives: For each mesh the values that wait there when it has ended.
    """

    takes: Counter[int] = field(default_factory=Counter[int])
    gives: Counter[int] = field(default_factory=Counter[int])


class _WaitingValues:
    """The values that layers give to each other in a micro-batch; grows, and is then read.

    Attributes:
        passes: What the passes of each layer do.
        rows: For each mesh the bytes of the rows of one micro-batch.
    """

    def __init__(
        self, neighbours: Neighbours, stages: Sequence[Stage], mesh_of_stage: Sequence[int]
    ) -> None:
        self.layers = neighbours.layers
        self.neighbours = neighbours
        self._stage_of = [s for s, stage in enumerate(stages) for _ in stage.layers]
        self._mesh_of = [mesh_of_stage[s] for s in self._stage_of]
        self._sizes = [stages[s].mesh.sizes for s in self._stage_of]
        self.passes: dict[tuple[Kind, int], _Pass] = {
            (kind, k): _Pass() for kind in (FORWARD, BACKWARD) for k in range(len(self.layers))
        }
        self.rows = Counter[int]()

    def add_activations(self) -> None:
        """Add what each forward pass makes for other layers."""
        entering = [list(_entering(layer)) for layer in self.layers]
        for k, layer in enumerate(self.layers):
            kept = _kept_as_it_leaves(layer)
            for activation in layer.activations_made():
                readers: dict[tuple[int, Layout], list[tuple[int, bool]]] = {}
                for r in range(k + 1, len(self.layers)):
                    for a, layout, is_kept in entering[r]:
                        if a == activation:
                            comes = self.neighbours.coming(r)[activation]
                            holds = is_kept and comes == layout
                            readers.setdefault((self._mesh_of[r], comes), []).append((r, holds))
                for (mesh, layout), found in readers.items():
                    if mesh == self._mesh_of[k] and activation in kept:
                        continue
                    num_bytes = local_bytes(
                        _activation(layer, activation), layout, self._sizes[found[0][0]]
                    )
                    self.passes[FORWARD, k].gives[mesh] += num_bytes
                    self._take(_last(found), FORWARD, num_bytes)

    def add_cotangents(self) -> None:
        """Add what each backward pass makes for other layers."""
        made = [layer.cotangents_made() for layer in self.layers]
        for k, layer in enumerate(self.layers):
            readers, wanted = self.neighbours.readers(k), layer.cotangents_wanted()
            for number, layout in wanted.items():
                activation = layer.names.leaving[number]
                for r, comes in readers.get(activation, {}).items():
                    if activation in made[r]:
                        num_bytes = local_bytes(
                            layer.cotangent(number), comes or layout, self._sizes[k]
                        )
                        self.passes[BACKWARD, r].gives[self._mesh_of[k]] += num_bytes
                        self._take(k, BACKWARD, num_bytes)
            for activation, layout in self.neighbours.carried(k).items():
                before = next(
                    r
                    for r in range(k + 1, len(made))
                    if self._mesh_of[r] == self._mesh_of[k] and activation in made[r]
                )
                num_bytes = local_bytes(layer.entering(activation), layout, self._sizes[k])
                self.passes[BACKWARD, before].gives[self._mesh_of[k]] += num_bytes
                self._take(k, BACKWARD, num_bytes)

    def add_rows(self, argument_names: Callable[[int], Sequence[str]]) -> None:
        """Add rows of the batch, which are there when the step begins."""
        readers: dict[tuple[int, str, Layout], list[tuple[int, bool]]] = {}
        num_bytes: dict[tuple[int, str, Layout], int] = {}
        for k, layer in enumerate(self.layers):
            graph, programs = layer.piece.graph, layer.programs
            names = argument_names(k)
            held = set(programs.backward.inputs)
            for value in dict.fromkeys((*programs.forward.inputs, *programs.backward.inputs)):
                if value.role == "rows":
                    key = (self._mesh_of[k], names[value.number], value.layout)
                    readers.setdefault(key, []).append((k, value in held))
                    tensor = graph.tensors[graph.inputs[value.number]]
                    num_bytes[key] = local_bytes(tensor, value.layout, self._sizes[k])
        for key, found in readers.items():
            self.rows[key[0]] += num_bytes[key]
            self._take(_last(found), FORWARD, num_bytes[key])

    def _take(self, layer: int, kind: Kind, num_bytes: int) -> None:
        self.passes[kind, layer].takes[self._mesh_of[layer]] += num_bytes

    def of_task(self, kind: Kind, stage: int) -> tuple[int, Counter[int]]:
        """Return what a task of a stage does.

        Returns:
            The most that waits on its own mesh while one of its programs runs, and what waits on
            each mesh afterwards; both beside what waited when it began.
        """
        mine = [k for k, s in enumerate(self._stage_of) if s == stage]
        now, most = Counter[int](), list[int]()
        for k in mine if kind == FORWARD else reversed(mine):
            now.subtract(self.passes[kind, k].takes)
            most.append(now[self._mesh_of[k]])
            now.update(self.passes[kind, k].gives)
        return max(most), now


def _added_at_peak(
    values: _WaitingValues, stages: Sequence[Stage], table: Schedule
) -> dict[int, int]:
    """Return for each mesh the most that is held and waits, less the most that is held."""
    count = table.num_microbatches
    waiting = {m: count * values.rows[m] for m in range(table.num_meshes)}
    held = dict.fromkeys(waiting, 0)
    most_held, most = dict(held), dict(waiting)
    effects = {
        (kind, s): _effect(values, stages[s], table, kind, s)
        for kind, s in itertools.product(table.kinds, range(table.num_stages))
    }
    for m, position in running_order(table):
        kind, stage, _ = table.tasks[m][position]
        begins, inside, ends, after = effects[kind, stage]
        now = held[m] = held[m] + begins
        if now > most_held[m]:
            most_held[m] = now
        if now + waiting[m] + inside > most[m]:
            most[m] = now + waiting[m] + inside
        held[m] = now + ends
        for mesh, num_bytes in after:
            waiting[mesh] += num_bytes
            if held[mesh] + waiting[mesh] > most[mesh]:
                most[mesh] = held[mesh] + waiting[mesh]
    return {m: max(0, most[m] - most_held[m]) for m in most}


def _effect(
    values: _WaitingValues, stage: Stage, table: Schedule, kind: Kind, number: int
) -> tuple[int, int, int, list[tuple[int, int]]]:
    """Return what a task does to what is held and waits.

    Returns:
        Bytes held from its start on, the most that waits while it runs, bytes held from its end on,
        and what waits on each mesh from then on.
    """
    late = 0 if stage.weights is None else stage.weights.held_bytes
    if kind == WEIGHT:
        return 0, 0, -late, []
    inside, after = values.of_task(kind, number)
    if kind == FORWARD:
        return stage.microbatch_bytes, inside, 0, [*after.items()]
    kept = late if table.splits_backward else 0
    return 0, inside, kept - stage.microbatch_bytes, [*after.items()]


def _last(readers: Iterable[tuple[int, bool]]) -> int:
    """Return the layer that takes a value: the first that keeps it, else the last that reads it."""
    found = list(readers)
    return next((k for k, is_kept in found if is_kept), found[-1][0])


def _entering(layer: LayerEnds) -> Iterator[tuple[Activation, Layout, bool]]:
    """Yield the activations that a layer reads, how, and whether its backward pass keeps them."""
    kept = set(layer.programs.kept)
    for value in dict.fromkeys((*layer.programs.forward.inputs, *layer.programs.kept)):
        if value.role == "entering":
            yield layer.names.entering[value.number], value.layout, value in kept


def _kept_as_it_leaves(layer: LayerEnds) -> set[Activation]:
    """Return the activations that leave a layer and that its own backward pass keeps."""
    program = layer.programs.forward
    made = zip(
        program.outputs, program.part.graph.outputs, program.part.decision.outputs, strict=True
    )
    found = [(value, (tensor, use.layout)) for value, tensor, use in made]
    kept = {same for value, same in found if value.role == "kept"}
    return {
        layer.names.leaving[value.number]
        for value, same in found
        if value.role == "leaving" and same in kept
    }


def _activation(layer: LayerEnds, activation: Activation) -> Tensor:
    """Return an activation that leaves a layer, in one micro-batch."""
    program = layer.programs.forward
    for value, tensor in zip(program.outputs, program.part.graph.outputs, strict=True):
        if value.role == "leaving" and layer.names.leaving[value.number] == activation:
            return program.part.graph.tensors[tensor]
    raise AssertionError(f"{activation} does not leave the layer")
