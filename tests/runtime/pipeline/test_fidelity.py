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
from meshwise.runtime.fidelity import bytes_of, compiled_bytes_of
from meshwise.runtime.pipeline.build import compiled_layers
from meshwise.runtime.pipeline.fidelity import planned_collectives

pytestmark = pytest.mark.usefixtures("quick_compile")


def test_collectives_of_all_programs_are_those_of_the_plan() -> None:
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    made = model_step(model_config("gpt-mini"), 8, optimizer)
    state = jax.eval_shape(made.create, jax.random.key(0))
    layers, _ = layers_of(made.step, (state, made.batch), {}, SIGNATURE, 4)
    choices = planned_stages(layers, 2, [(0, 1, (2, 2), "none"), (2, 3, (2, 2), "full")])
    kinds: Counter[str] = Counter()
    for layer in compiled_layers(layers, choices, 2):
        records = planned_collectives(layer, layers.update.num_phases)
        for expected, compiled in zip(records, layer.programs, strict=True):
            found = compiled_bytes_of(compiled.run.as_text(), layer.logical.sizes)
            assert found == bytes_of(expected), compiled.name
            kinds.update(found)
    assert set(kinds) == {"all-gather", "all-reduce", "all-to-all", "permute", "reduce-scatter"}
