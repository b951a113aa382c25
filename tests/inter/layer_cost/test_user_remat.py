"""A model that rematerialises its own blocks: a pipeline keeps what enters them, and no more."""

from __future__ import annotations

import jax
import optax

from doubles.layered_steps import SIGNATURE
from meshwise.models.named import model_config
from meshwise.models.steps import model_step
from meshwise.planner.pipeline import layers_of


def kept_bytes(*, remat: bool) -> list[int]:
    """Bytes of a micro-batch that the backward passes of all layers have of their forward ones."""
    config = model_config("llama-tiny", num_layers=4, remat=remat)
    made = model_step(config, 4, optax.sgd(0.1))
    state = jax.eval_shape(made.create, jax.random.key(0))
    layers, _ = layers_of(made.step, (state, made.batch), {}, SIGNATURE, 4)
    found: list[int] = []
    for k in range(4):
        piece = layers.graph(k, k, 2)
        body = piece.graph.operators[piece.loop].bodies[0]
        found.append(sum(body.tensors[t].num_bytes for t in piece.border.tensors))
    return found


def test_blocks_that_the_user_rematerialises_keep_what_enters_them() -> None:
    stream_bytes = 2 * 32 * 32 * 4
    plain, remat = kept_bytes(remat=False), kept_bytes(remat=True)
    assert remat[1] == stream_bytes
    assert min(plain[:3]) > 4 * stream_bytes
    assert max(remat[:3]) <= 2 * stream_bytes
