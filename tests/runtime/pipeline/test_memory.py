"""Predicted memory of stages is what XLA says of their compiled programs (I2)."""

from __future__ import annotations

import jax
import optax
import pytest

from doubles.layered_steps import SIGNATURE
from doubles.planned_stages import planned_stages
from meshwise.inter.footprint import footprint
from meshwise.inter.piece import Remat
from meshwise.models.named import model_config
from meshwise.models.steps import model_step
from meshwise.pipeline_planning import layers_of
from meshwise.runtime.pipeline.build import compiled_layers
from meshwise.runtime.pipeline.memory import measured_footprint


@pytest.mark.parametrize("remat", ["none", pytest.param("full", marks=pytest.mark.slow)])
def test_predicted_memory_of_a_stage_is_that_of_xla(remat: Remat) -> None:
    made = model_step(model_config("gpt-small"), 8, optax.adam(1e-3))
    state = jax.eval_shape(made.create, jax.random.key(0))
    layers, _ = layers_of(made.step, (state, made.batch), {}, SIGNATURE, 4)
    choices = planned_stages(layers, 2, [(0, 1, (1, 2), remat), (2, 3, (2, 1), remat)])
    compiled = compiled_layers(layers, choices, 2)
    for stage, in_flight in ((0, 2), (1, 1)):
        mine = [layer for layer in compiled if layer.stage == stage]
        found = measured_footprint(mine)
        said = [footprint(x.planned.made.graph, x.planned.decision, x.logical) for x in mine]
        predicted = sum(f.resident_bytes + in_flight * f.microbatch_bytes for f in said) + max(
            f.temporary_bytes for f in said
        )
        measured = found.resident_bytes + in_flight * found.microbatch_bytes + found.temporary_bytes
        assert 0.97 <= predicted / measured <= 1.12
