"""Tiny GPTs with every optimizer and loss: the problems of the comparison with one device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwise as mw
from meshwise.models.gpt import Gpt, GptConfig
from meshwise.models.losses import masked_mean_cross_entropy, mean_cross_entropy
from oracle.problem import Problem
from oracle.tolerances import ADAM_EPS, NUM_STEPS

BATCH, SEQ, VOCAB = 32, 8, 32

OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": lambda: optax.sgd(0.1, momentum=0.9),
    "adam": lambda: optax.adam(1e-2, eps=ADAM_EPS),
    # Factored second moments also for dims as small as these.
    "adafactor": lambda: optax.adafactor(1e-2, min_dim_size_to_factor=8),
}


class Case(NamedTuple):
    """What a GPT problem is made of."""

    form: str = "unrolled"
    optimizer: str = "adam"
    dropout: bool = False
    loss: str = "mean"
    remat: bool = False
    dtype: str = "float32"
    param_dtype: str = "float32"
    plain: bool = False
    vocab: int = VOCAB
    num_layers: int = 2


class State(NamedTuple):
    """All that a step changes: an integer, a key, two trees."""

    step: jax.Array
    key: jax.Array
    params: Any
    opt: Any


def _config(case: Case) -> GptConfig:
    return GptConfig(
        vocab_size=case.vocab,
        seq_len=SEQ,
        hidden=16,
        num_layers=case.num_layers,
        num_heads=4,
        dropout=0.25 if case.dropout else 0.0,
        dtype=case.dtype,
        param_dtype=case.param_dtype,
        scan_layers=case.form == "scan",
        remat=case.remat,
    )


def _loss(case: Case, config: GptConfig, params: Any, key: jax.Array, batch: Any) -> jax.Array:
    rngs = {"dropout": key} if case.dropout else {}
    logits = Gpt(config).apply(
        {"params": params}, batch["x"], deterministic=not case.dropout, rngs=rngs
    )
    if case.loss == "masked":
        return masked_mean_cross_entropy(logits, batch["y"], batch["mask"])
    return mean_cross_entropy(logits, batch["y"])


def _batches(num: int, vocab: int) -> tuple[tuple[Any, ...], ...]:
    rng = np.random.default_rng(3)
    made = []
    for _ in range(num):
        tokens = rng.integers(0, vocab, (BATCH, SEQ + 1), dtype=np.int32)
        mask = rng.random((BATCH, SEQ)) < 0.7
        made.append(({"x": tokens[:, :-1], "y": tokens[:, 1:], "mask": mask},))
    return tuple(made)


@cache
def gpt_problem(case: Case) -> Problem:
    """A GPT of two layers; call it with x64 enabled for float64 parameters."""
    config, tx = _config(case), OPTIMIZERS[case.optimizer]()
    value_and_grad = jax.value_and_grad if case.plain else mw.value_and_grad

    def step(state: State, batch: Any) -> tuple[State, jax.Array]:
        key, now = jax.random.split(state.key)
        loss, grads = value_and_grad(lambda p: _loss(case, config, p, now, batch))(state.params)
        updates, opt = tx.update(grads, state.opt, state.params)
        return State(state.step + 1, key, optax.apply_updates(state.params, updates), opt), loss

    def gradient(state: State, batch: Any) -> Any:
        _, now = jax.random.split(state.key)
        return jax.grad(lambda p: _loss(case, config, p, now, batch))(state.params)

    def first_state() -> State:
        params = Gpt(config).init(jax.random.key(0), jnp.zeros((1, SEQ), jnp.int32))["params"]
        # Biases and scales as training would leave them: zeros hide a term that is dropped.
        leaves, tree = jax.tree.flatten(params)
        keys = jax.random.split(jax.random.key(1), len(leaves))
        moved = [
            x + 0.1 * jax.random.normal(k, x.shape, x.dtype)
            for x, k in zip(leaves, keys, strict=True)
        ]
        params = tree.unflatten(moved)
        return State(jnp.zeros((), jnp.int32), jax.random.key(7), params, tx.init(params))

    # One program instead of one for each operator and shape.
    state = jax.jit(first_state)()
    return Problem(step=step, state=state, calls=_batches(NUM_STEPS, case.vocab), gradient=gradient)
