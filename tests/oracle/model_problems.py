"""Tiny models of every family as training steps: the problems of the comparison with one device.

Each name of `MODELS` makes a step `(state, batch) -> (state, loss)` with Adam on float64, whose
parameters are drawn with NumPy, so that nothing is compiled for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwise as mw
from meshwise.models.bert import Bert, BertConfig
from meshwise.models.expert_llama import ExpertLlama, ExpertLlamaConfig
from meshwise.models.llama import Llama, LlamaConfig
from meshwise.models.losses import masked_mean_cross_entropy, mean_cross_entropy
from meshwise.models.moe import Balance, Moe, MoeConfig
from meshwise.models.u_transformer import UTransformer, UTransformerConfig
from meshwise.models.wide_resnet import WideResNet, WideResNetConfig
from models.counting import random_params
from oracle.problem import Problem
from oracle.tolerances import ADAM_EPS, NUM_STEPS

BATCH, SEQ, VOCAB = 32, 8, 32

Loss = Callable[[Any, Any, Any], Any]


class Model(NamedTuple):
    """A model to train.

    Attributes:
        params: Abstract parameters.
        loss: `(params, kept, batch) -> (scalar, kept)`.
        batches: One a step.
        kept: Other state that the model moves, as running averages; abstract.
    """

    params: Any
    loss: Loss
    batches: list[Any]
    kept: Any = None


def _tokens(rng: np.random.Generator) -> dict[str, Any]:
    tokens = rng.integers(0, VOCAB, (BATCH, SEQ + 1), dtype=np.int32)
    return {"x": tokens[:, :-1], "y": tokens[:, 1:]}


def _draw(make: Callable[[np.random.Generator], Any]) -> list[Any]:
    rng = np.random.default_rng(3)
    return [make(rng) for _ in range(NUM_STEPS)]


def _abstract(module: Any, *inputs: Any) -> Any:
    specs = [jax.ShapeDtypeStruct((16, *x.shape[1:]), x.dtype) for x in inputs]
    return jax.eval_shape(module.init, jax.random.key(0), *specs)


def _llama(*, scan_layers: bool, remat: bool) -> Model:
    config = LlamaConfig(
        vocab_size=VOCAB, seq_len=SEQ, hidden=16, ffn=32, num_layers=2, num_heads=8,
        num_kv_heads=4, dtype="float64", param_dtype="float64", scan_layers=scan_layers,
        remat=remat,
    )  # fmt: skip
    batches = _draw(_tokens)

    def loss(params: Any, kept: Any, batch: Any) -> Any:
        logits = Llama(config).apply({"params": params}, batch["x"])
        return mean_cross_entropy(logits, batch["y"]), kept

    return Model(_abstract(Llama(config), batches[0]["x"])["params"], loss, batches)


def _experts(*, num_layers: int) -> Model:
    config = ExpertLlamaConfig(
        vocab_size=VOCAB, seq_len=SEQ, hidden=16, ffn=16, num_layers=num_layers, num_heads=4,
        num_kv_heads=2, num_experts=8, experts_per_token=2, shared_ffn=8, dtype="float64",
        param_dtype="float64",
    )  # fmt: skip
    batches = _draw(_tokens)

    def loss(params: Any, kept: Any, batch: Any) -> Any:
        logits = ExpertLlama(config).apply({"params": params}, batch["x"])
        return mean_cross_entropy(logits, batch["y"]), kept

    return Model(_abstract(ExpertLlama(config), batches[0]["x"])["params"], loss, batches)


def _bert(*, scan_layers: bool) -> Model:
    config = BertConfig(
        vocab_size=VOCAB, seq_len=SEQ, hidden=16, num_layers=2, num_heads=4, dtype="float64",
        param_dtype="float64", scan_layers=scan_layers,
    )  # fmt: skip

    def make(rng: np.random.Generator) -> dict[str, Any]:
        shape = (BATCH, SEQ)
        return {
            **_tokens(rng),
            "segments": rng.integers(0, 2, shape, dtype=np.int32),
            "is_token": np.arange(SEQ) < rng.integers(2, SEQ + 1, (BATCH, 1)),
            "weights": rng.random(shape) * (rng.random(shape) < 0.4),
        }

    def loss(params: Any, kept: Any, batch: Any) -> Any:
        logits = Bert(config).apply(
            {"params": params}, batch["x"], batch["segments"], batch["is_token"]
        )
        return masked_mean_cross_entropy(logits, batch["y"], batch["weights"]), kept

    batches = _draw(make)
    inputs = (batches[0][name] for name in ("x", "segments", "is_token"))
    return Model(_abstract(Bert(config), *inputs)["params"], loss, batches)


def _moe(*, balance: Balance, group_size: int) -> Model:
    config = MoeConfig(
        vocab_size=VOCAB, seq_len=SEQ, hidden=16, ffn=32, num_layers=2, num_heads=4,
        num_experts=8, group_size=group_size, balance=balance, dtype="float64",
        param_dtype="float64",
    )  # fmt: skip

    def loss(params: Any, kept: Any, batch: Any) -> Any:
        logits, balancing = Moe(config).apply({"params": params}, batch["x"])
        return mean_cross_entropy(logits, batch["y"]) + 0.01 * balancing, kept

    batches = _draw(_tokens)
    return Model(_abstract(Moe(config), batches[0]["x"])["params"], loss, batches)


def _wide_resnet() -> Model:
    config = WideResNetConfig(
        num_layers=14, base_channels=8, width_factor=2, num_classes=16, image_size=16,
        dtype="float64", param_dtype="float64",
    )  # fmt: skip
    model = WideResNet(config)

    def make(rng: np.random.Generator) -> dict[str, Any]:
        return {
            "x": rng.normal(size=(BATCH, 16, 16, 3)),
            "y": rng.integers(0, config.num_classes, BATCH, dtype=np.int32),
        }

    def loss(params: Any, kept: Any, batch: Any) -> Any:
        logits, moved = model.apply(
            {"params": params, "batch_stats": kept}, batch["x"], train=True,
            mutable=["batch_stats"],
        )  # fmt: skip
        return mean_cross_entropy(logits, batch["y"]), moved["batch_stats"]

    batches = _draw(make)
    variables = jax.eval_shape(
        lambda key, x: model.init(key, x, train=False), jax.random.key(0), batches[0]["x"]
    )
    return Model(variables["params"], loss, batches, variables["batch_stats"])


def _u_transformer() -> Model:
    config = UTransformerConfig(
        base_channels=8, num_levels=2, image_size=8, num_heads=4, attention_groups=4,
        dtype="float64", param_dtype="float64",
    )  # fmt: skip

    def make(rng: np.random.Generator) -> dict[str, Any]:
        return {
            "latents": rng.normal(size=(BATCH, 8, 8, config.in_channels)),
            "steps": 1000 * rng.random(BATCH),
            "context": rng.normal(size=(BATCH, *config.context_shape)),
            "noise": rng.normal(size=(BATCH, 8, 8, config.out_channels)),
        }

    def loss(params: Any, kept: Any, batch: Any) -> Any:
        inputs = (batch["latents"], batch["steps"], batch["context"])
        guess = UTransformer(config).apply({"params": params}, *inputs)
        return jnp.mean((guess - batch["noise"]) ** 2), kept

    batches = _draw(make)
    inputs = (batches[0][name] for name in ("latents", "steps", "context"))
    return Model(_abstract(UTransformer(config), *inputs)["params"], loss, batches)


MODELS: Mapping[str, Callable[[], Model]] = {
    "llama": lambda: _llama(scan_layers=False, remat=False),
    "llama-scan-remat": lambda: _llama(scan_layers=True, remat=True),
    "bert": lambda: _bert(scan_layers=False),
    "bert-scan": lambda: _bert(scan_layers=True),
    # A group is a row of the batch: micro-batches hold whole groups.
    "moe": lambda: _moe(balance="group", group_size=SEQ),
    "moe-global-balance": lambda: _moe(balance="batch", group_size=SEQ),
    "wide-resnet": _wide_resnet,
    "u-transformer": _u_transformer,
    "experts": lambda: _experts(num_layers=2),
    "experts-of-1": lambda: _experts(num_layers=1),
}

# Losses that need statistics of the whole batch in the middle.
INSEPARABLE = ("moe-global-balance", "wide-resnet")


def _rows(batch: Any, t: int, b: int) -> Any:
    """Rows of micro-batch `t` of `b` on 8 devices, as `trace.time.state.Batch` defines them."""
    rows = np.arange(BATCH)
    return jax.tree.map(lambda x: x[rows[(rows // (BATCH // (8 * b))) % b == t]], batch)


@cache
def model_problem(name: str, one_by_one: int = 1) -> Problem:
    """The training step of a model; call it with x64 enabled.

    Args:
        name: One of `MODELS`.
        one_by_one: With more than 1, the step of one device that takes the loss of that many
            micro-batches apart and averages: what local statistics mean.
    """
    model, tx = MODELS[name](), optax.adam(1e-2, eps=ADAM_EPS)

    def loss(params: Any, kept: Any, batch: Any) -> Any:
        if one_by_one == 1:
            return model.loss(params, kept, batch)
        parts = [model.loss(params, kept, _rows(batch, t, one_by_one)) for t in range(one_by_one)]
        return jax.tree.map(lambda *terms: sum(terms) / one_by_one, *parts)

    def step(state: Any, batch: Any) -> Any:
        params, kept, opt = state
        (value, kept), grads = mw.value_and_grad(loss, has_aux=True)(params, kept, batch)
        updates, opt = tx.update(grads, opt, params)
        return (optax.apply_updates(params, updates), kept, opt), value

    params = random_params(model.params)
    zeros = jax.tree.map(
        lambda leaf: jnp.asarray(np.zeros(leaf.shape, leaf.dtype)), jax.eval_shape(tx.init, params)
    )
    kept = random_params(model.kept) if model.kept is not None else None
    calls = tuple((batch,) for batch in model.batches)
    return Problem(step=step, state=(params, kept, zeros), calls=calls)
