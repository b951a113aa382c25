"""Each program of a layer sends what the plan of its part says, and nothing else (I2)."""

from __future__ import annotations

from collections import Counter

import jax
import optax
import pytest

from doubles.few import few
from doubles.layered_steps import SIGNATURE
from doubles.planned_stages import planned_stages
from meshwise.inter.search.layer_work import layer_work
from meshwise.models.named import model_config
from meshwise.models.steps import model_step
from meshwise.planner.pipeline import layers_of
from meshwise.runtime.fidelity import bytes_of, compiled_bytes_of
from meshwise.runtime.pipeline.build import compiled_layers

pytestmark = pytest.mark.usefixtures("quick_steps")


@pytest.mark.parametrize("splits_backward", few([False, True], [False]))
def test_collectives_of_all_programs_are_those_of_the_plan(splits_backward: bool) -> None:
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    made = model_step(model_config("gpt-mini"), 8, optimizer)
    state = jax.eval_shape(made.create, jax.random.key(0))
    layers, _ = layers_of(made.step, (state, made.batch), {}, SIGNATURE, 4)
    choices = planned_stages(layers, 2, [(0, 1, (2, 2), "none"), (2, 3, (2, 2), "full")])
    kinds: Counter[str] = Counter()
    for layer in compiled_layers(layers, choices, 2, splits_backward=splits_backward):
        loops = set(layer.parts.passes)
        found: Counter[str] = Counter()
        for program in layer.parts.programs:
            times = 2 if program in loops else 1
            found += compiled_bytes_of(program.run.as_text(), layer.logical.sizes, times)
        planned = layer.planned
        work = layer_work(
            planned.made.graph,
            planned.decision,
            layer.logical,
            splits_backward=splits_backward,
        )
        assert found == bytes_of(work.collectives), layer.layer
        kinds.update(found)
    assert set(kinds) == {"all-gather", "all-reduce", "all-to-all", "permute", "reduce-scatter"}
