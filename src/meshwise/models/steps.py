"""Training steps of the models: a state `(params, kept, optimizer)`, a batch of `rows`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from meshwise.jax_compat.jaxprs import PyTree
from meshwise.models.bert import Bert, BertConfig
from meshwise.models.expert_llama import ExpertLlama, ExpertLlamaConfig
from meshwise.models.gpt import Gpt, GptConfig
from meshwise.models.llama import Llama, LlamaConfig
from meshwise.models.losses import masked_mean_cross_entropy, mean_cross_entropy
from meshwise.models.moe import Moe, MoeConfig
from meshwise.models.u_transformer import UTransformer, UTransformerConfig
from meshwise.models.wide_resnet import WideResNet, WideResNetConfig
from meshwise.trace.loss import value_and_grad

Config = GptConfig | LlamaConfig | BertConfig | MoeConfig | WideResNetConfig | UTransformerConfig
# The optimizer of a step that names none.
ADAM = optax.adam(1e-3, eps=1e-3)
# What a step is made of: it makes variables from a key; its loss, of parameters, what is kept (a
# collection that no gradient moves) and a batch, returns that collection too; shapes of a batch.
_Init: TypeAlias = Callable[[jax.Array], PyTree]
_Loss: TypeAlias = Callable[[PyTree, PyTree, PyTree], tuple[jax.Array, PyTree]]
StepParts: TypeAlias = tuple[_Init, _Loss, PyTree]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStep:
    """A training step and what it takes.

    Attributes:
        step: `(state, batch) -> (state, loss)`.
        create: Makes the state from a key.
        batch: Shapes of a batch.
    """

    step: Callable[..., PyTree]
    create: Callable[[jax.Array], PyTree]
    batch: PyTree

    @property
    def state(self) -> PyTree:
        """Shapes of the state."""
        return jax.eval_shape(self.create, jax.random.key(0))

    @property
    def abstract(self) -> tuple[Callable[..., PyTree], PyTree, PyTree]:
        """`(step, state, batch)`, for planning and compiling."""
        return self.step, self.state, self.batch


def model_step(
    config: Config, rows: int, tx: optax.GradientTransformation | None = None
) -> ModelStep:
    """Return the training step of a configuration; next tokens, masked tokens, classes or noise.

    Args:
        config: The configuration of any model.
        rows: Batch size.
        tx: Optimizer; Adam if None.
    """
    init, loss, batch = step_parts(config, rows)
    optimizer = tx or ADAM

    def create(key: jax.Array) -> PyTree:
        variables = init(key)
        params = variables["params"]
        return params, variables.get("batch_stats"), optimizer.init(params)

    def step(state: PyTree, batch: PyTree) -> PyTree:
        params, kept, opt = state
        (value, kept), grads = value_and_grad(loss, has_aux=True)(params, kept, batch)
        updates, opt = optimizer.update(grads, opt, params)
        return (optax.apply_updates(params, updates), kept, opt), value

    return ModelStep(step=step, create=create, batch=batch)


def step_parts(config: Config, rows: int) -> StepParts:
    """Return what the step of a configuration is made of.

    Args:
        config: The configuration of any model.
        rows: Batch size.

    Returns:
        What makes variables from a key; the loss `(params, kept, batch) -> (value, kept)`; shapes
        of a batch.
    """
    match config:
        case GptConfig() | LlamaConfig() | MoeConfig():
            return _decoder(config, rows)
        case BertConfig():
            return _bert(config, rows)
        case WideResNetConfig():
            return _wide_resnet(config, rows)
        case UTransformerConfig():
            return _u_transformer(config, rows)


def _decoder(config: GptConfig | LlamaConfig | MoeConfig, rows: int) -> StepParts:
    tokens = jax.ShapeDtypeStruct((rows, config.seq_len), jnp.int32)
    model: nn.Module = Moe(config) if isinstance(config, MoeConfig) else language_model(config)

    def loss(params: PyTree, kept: PyTree, batch: PyTree) -> tuple[jax.Array, PyTree]:
        variables = {"params": params}
        if not isinstance(config, MoeConfig):
            logits: PyTree = model.apply(variables, batch["x"])
            return mean_cross_entropy(logits, batch["y"]), kept
        both: PyTree = model.apply(variables, batch["x"])
        return mean_cross_entropy(both[0], batch["y"]) + 0.01 * both[1], kept

    def init(key: jax.Array) -> PyTree:
        return model.init(key, jnp.zeros(tokens.shape, jnp.int32))

    return init, loss, {"x": tokens, "y": tokens}


def language_model(config: GptConfig | LlamaConfig) -> nn.Module:
    """Return the module of a configuration, tokens `[batch, seq]` to logits `[batch, seq, vocab]`.

    Args:
        config: The configuration of a decoder.
    """
    if isinstance(config, GptConfig):
        return Gpt(config)
    return ExpertLlama(config) if isinstance(config, ExpertLlamaConfig) else Llama(config)


def _bert(config: BertConfig, rows: int) -> StepParts:
    tokens = jax.ShapeDtypeStruct((rows, config.seq_len), jnp.int32)

    def loss(params: PyTree, kept: PyTree, batch: PyTree) -> tuple[jax.Array, PyTree]:
        logits: PyTree = Bert(config).apply(
            {"params": params}, batch["x"], batch["segments"], batch["is_token"]
        )
        return masked_mean_cross_entropy(logits, batch["y"], batch["weights"]), kept

    def init(key: jax.Array) -> PyTree:
        ids = jnp.zeros((1, config.seq_len), jnp.int32)
        return Bert(config).init(key, ids, ids, ids == 0)

    return (
        init,
        loss,
        {
            "x": tokens,
            "y": tokens,
            "segments": tokens,
            "is_token": jax.ShapeDtypeStruct(tokens.shape, jnp.bool_),
            "weights": jax.ShapeDtypeStruct(tokens.shape, jnp.float32),
        },
    )


def _wide_resnet(config: WideResNetConfig, rows: int) -> StepParts:
    shape = (config.image_size, config.image_size, 3)
    model = WideResNet(config)

    def loss(params: PyTree, kept: PyTree, batch: PyTree) -> tuple[jax.Array, PyTree]:
        logits, moved = model.apply(
            {"params": params, "batch_stats": kept}, batch["x"], train=True,
            mutable=["batch_stats"],
        )  # fmt: skip
        return mean_cross_entropy(logits, batch["y"]), moved["batch_stats"]

    return (
        (lambda key: model.init(key, jnp.zeros((1, *shape)), train=False)),
        loss,
        {
            "x": jax.ShapeDtypeStruct((rows, *shape), jnp.float32),
            "y": jax.ShapeDtypeStruct((rows,), jnp.int32),
        },
    )


def _u_transformer(config: UTransformerConfig, rows: int) -> StepParts:
    def image(channels: int) -> jax.ShapeDtypeStruct:
        size = config.image_size
        return jax.ShapeDtypeStruct((rows, size, size, channels), jnp.float32)

    batch = {
        "latents": image(config.in_channels),
        "steps": jax.ShapeDtypeStruct((rows,), jnp.float32),
        "context": jax.ShapeDtypeStruct((rows, *config.context_shape), jnp.float32),
        "noise": image(config.out_channels),
    }
    model = UTransformer(config)

    def inputs(batch: PyTree) -> PyTree:
        return batch["latents"], batch["steps"], batch["context"]

    def init(key: jax.Array) -> PyTree:
        return model.init(key, *(jnp.zeros(x.shape, x.dtype) for x in inputs(batch)))

    def loss(params: PyTree, kept: PyTree, batch: PyTree) -> tuple[jax.Array, PyTree]:
        guess = model.apply({"params": params}, *inputs(batch))
        return jnp.mean((guess - batch["noise"]) ** 2), kept

    return init, loss, batch
