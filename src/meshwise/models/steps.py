"""Training steps of the models: a state `(params, kept, optimizer)`, a batch of `rows`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from meshwise.models.bert import Bert, BertConfig
from meshwise.models.gpt import Gpt, GptConfig
from meshwise.models.llama import Llama, LlamaConfig
from meshwise.models.losses import masked_mean_cross_entropy, mean_cross_entropy
from meshwise.models.moe import Moe, MoeConfig
from meshwise.models.u_transformer import UTransformer, UTransformerConfig
from meshwise.models.wide_resnet import WideResNet, WideResNetConfig
from meshwise.trace.loss import value_and_grad

Config = GptConfig | LlamaConfig | BertConfig | MoeConfig | WideResNetConfig | UTransformerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStep:
    """A training step and what it takes.

    Attributes:
        step: `(state, batch) -> (state, loss)`.
        create: Makes the state from a key.
        batch: Shapes of a batch.
    """

    step: Callable[..., Any]
    create: Callable[[jax.Array], Any]
    batch: Any

    @property
    def state(self) -> Any:
        """Shapes of the state."""
        return jax.eval_shape(self.create, jax.random.key(0))

    @property
    def abstract(self) -> tuple[Callable[..., Any], Any, Any]:
        """`(step, state, batch)`, for planning and compiling."""
        return self.step, self.state, self.batch


def model_step(
    config: Config, rows: int, tx: optax.GradientTransformation | None = None
) -> ModelStep:
    """The training step of a configuration; next tokens, masked tokens, classes or noise.

    Args:
        config: Of any model.
        rows: Batch size.
        tx: Optimizer; Adam if None.
    """
    init, loss, batch = _parts(config, rows)
    optimizer = tx or optax.adam(1e-3, eps=1e-3)

    def create(key: jax.Array) -> Any:
        variables = init(key)
        params = variables["params"]
        return params, variables.get("batch_stats"), optimizer.init(params)

    def step(state: Any, batch: Any) -> Any:
        params, kept, opt = state
        (value, kept), grads = value_and_grad(loss, has_aux=True)(params, kept, batch)
        updates, opt = optimizer.update(grads, opt, params)
        return (optax.apply_updates(params, updates), kept, opt), value

    return ModelStep(step=step, create=create, batch=batch)


def _parts(config: Config, rows: int) -> tuple[Any, Any, Any]:
    match config:
        case GptConfig() | LlamaConfig() | MoeConfig():
            return _decoder(config, rows)
        case BertConfig():
            return _bert(config, rows)
        case WideResNetConfig():
            return _wide_resnet(config, rows)
        case UTransformerConfig():
            return _u_transformer(config, rows)


def _decoder(config: GptConfig | LlamaConfig | MoeConfig, rows: int) -> tuple[Any, Any, Any]:
    tokens = jax.ShapeDtypeStruct((rows, config.seq_len), jnp.int32)
    model: Any = Moe(config) if isinstance(config, MoeConfig) else _language_model(config)

    def loss(params: Any, kept: Any, batch: Any) -> Any:
        variables = {"params": params}
        if not isinstance(config, MoeConfig):
            logits: Any = model.apply(variables, batch["x"])
            return mean_cross_entropy(logits, batch["y"]), kept
        both: Any = model.apply(variables, batch["x"])
        return mean_cross_entropy(both[0], batch["y"]) + 0.01 * both[1], kept

    return (
        (lambda key: model.init(key, jnp.zeros(tokens.shape, jnp.int32))),
        loss,
        {
            "x": tokens,
            "y": tokens,
        },
    )


def _language_model(config: GptConfig | LlamaConfig) -> Any:
    return Gpt(config) if isinstance(config, GptConfig) else Llama(config)


def _bert(config: BertConfig, rows: int) -> tuple[Any, Any, Any]:
    tokens = jax.ShapeDtypeStruct((rows, config.seq_len), jnp.int32)

    def loss(params: Any, kept: Any, batch: Any) -> Any:
        logits: Any = Bert(config).apply(
            {"params": params}, batch["x"], batch["segments"], batch["is_token"]
        )
        return masked_mean_cross_entropy(logits, batch["y"], batch["weights"]), kept

    def init(key: jax.Array) -> Any:
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


def _wide_resnet(config: WideResNetConfig, rows: int) -> tuple[Any, Any, Any]:
    shape = (config.image_size, config.image_size, 3)
    model = WideResNet(config)

    def loss(params: Any, kept: Any, batch: Any) -> Any:
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


def _u_transformer(config: UTransformerConfig, rows: int) -> tuple[Any, Any, Any]:
    def image(channels: int) -> Any:
        size = config.image_size
        return jax.ShapeDtypeStruct((rows, size, size, channels), jnp.float32)

    batch = {
        "latents": image(config.in_channels),
        "steps": jax.ShapeDtypeStruct((rows,), jnp.float32),
        "context": jax.ShapeDtypeStruct((rows, *config.context_shape), jnp.float32),
        "noise": image(config.out_channels),
    }
    model = UTransformer(config)

    def inputs(batch: Any) -> Any:
        return batch["latents"], batch["steps"], batch["context"]

    def init(key: jax.Array) -> Any:
        return model.init(key, *(jnp.zeros(x.shape, x.dtype) for x in inputs(batch)))

    def loss(params: Any, kept: Any, batch: Any) -> Any:
        guess = model.apply({"params": params}, *inputs(batch))
        return jnp.mean((guess - batch["noise"]) ** 2), kept

    return init, loss, batch
