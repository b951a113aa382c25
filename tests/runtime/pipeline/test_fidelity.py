"""Each program of a layer sends what the plan of its part says, and nothing else (I2)."""

from __future__ import annotations

from collections import Counter

import jax
import optax
import pytest

from doubles.layered_steps import SIGNATURE
from doubles.planned_stages import planned_stages
from meshwise.models.named import model_config
from meshwise.models.steps import model_step
from meshwise.pipeline_planning import layers_of
from meshwise.plan.collectives import collectives
from meshwise.runtime.hlo import hlo_collectives
from meshwise.runtime.pipeline.build import compiled_layers
from meshwise.runtime.pipeline.groups import update_groups
from meshwise.train.summary import planned_bytes

pytestmark = pytest.mark.usefixtures("quick_compile")


def test_collectives_of_all_programs_are_those_of_the_plan() -> None:
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    made = model_step(model_config("gpt-mini"), 8, optimizer)
    state = jax.eval_shape(made.create, jax.random.key(0))
    layers, _ = layers_of(made.step, (state, made.batch), {}, SIGNATURE, 4)
    choices = planned_stages(layers, 2, [(0, 1, (2, 2), "none"), (2, 3, (2, 2), "full")])
    kinds: Counter[str] = Counter()
    for layer in compiled_layers(layers, choices, 2):
        programs = layer.planned.programs
        groups = update_groups(layer.planned, layers.update.num_phases)
        parts = [programs.before, programs.forward, programs.backward, *programs.after(groups)]
        for part, compiled in zip(parts, layer.programs, strict=True):
            graph, decision = part.part.graph, part.part.decision
            expected = planned_bytes(collectives(graph, decision, layer.logical))
            found: Counter[str] = Counter()
            for record in hlo_collectives(compiled.run.as_text(), layer.logical.sizes):
                found[record.kind] += record.num_bytes * record.count
            assert dict(sorted(found.items())) == expected, compiled.name
            kinds.update(found)
    assert set(kinds) == {"all-gather", "all-reduce", "all-to-all", "permute", "reduce-scatter"}
