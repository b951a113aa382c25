"""DeepSeek-V3's shape with experts that have places, so that tokens are exchanged all-to-all.

As the model `experts-deepseek-v3`, with two differences.  An expert has as many places for the
tokens of a sequence as it gets if all experts are equally busy: shapes are then static, and what
splits rows before and experts after is an all-to-all of the tokens.  Attention is cuDNN's, which
keeps no scores.

Source: DeepSeek-AI 2024 (DeepSeek-V3, sections 2.1 and 4.2); Lepikhin et al. 2020 (GShard) for
places.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import lax

from evaluation.steps import BFLOAT16
from meshwise.jax_compat.jaxprs import PyTree
from meshwise.models.expert_llama import ExpertLlamaConfig, router
from meshwise.models.llama import (
    INIT_STDDEV,
    Llama,
    LlamaBlock,
    LlamaConfig,
    LlamaMlp,
    normal,
    out_stddev,
    rotate,
)
from meshwise.models.losses import mean_cross_entropy
from meshwise.models.mixed_precision import with_master_copy
from meshwise.models.precision import module_dtypes
from meshwise.models.sizes.expert_llama_sizes import expert_llama_config
from meshwise.rules.cudnn import cudnn_attention
from meshwise.trace.loss import value_and_grad

# Sequences of a step. Source: DeepSeek-V3, section 4.2.
BATCH = 15360


def num_places(config: ExpertLlamaConfig, seq_len: int) -> int:
    """Return the places of an expert for one sequence: as many as equally busy experts need."""
    return seq_len * config.experts_per_token // config.num_experts


class PlacedExperts(nn.Module):
    """Experts with places, and one that is shared: `[batch, seq, hidden]` to the same."""

    config: ExpertLlamaConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Send each token through its experts; those that find no place are left out."""
        c = self.config
        batch, seq, hidden = x.shape
        k, places = c.experts_per_token, num_places(c, seq)
        scores, chosen = lax.top_k(router(c)(x), k)
        gates = jax.nn.sigmoid(scores)
        weights = (gates / gates.sum(axis=-1, keepdims=True)).astype(c.dtype)
        experts = chosen.reshape(batch, -1)
        # Tokens in the order of their experts: where an expert begins, and how many it has.
        order = jnp.argsort(experts, axis=-1, stable=True)
        sizes = jax.vmap(lambda e: jnp.bincount(e, length=c.num_experts))(experts)
        starts = jnp.cumsum(sizes, axis=-1) - sizes

        place = jnp.arange(places)
        sources = jnp.minimum(starts[..., None] + place, seq * k - 1).reshape(batch, -1)
        tokens = jnp.take_along_axis(order, sources, axis=1) // k
        rows = _rows(x, tokens).reshape(batch, c.num_experts, places, hidden)
        rows = jnp.where((place < sizes[..., None])[..., None], rows, 0)

        def product(name: str, rows: jax.Array, width: int, stddev: float) -> jax.Array:
            shape = (c.num_experts, rows.shape[-1], width)
            kernel = self.param(name, normal(stddev), shape, c.param_dtype)
            return jnp.einsum("beph,ehf->bepf", rows, kernel.astype(c.dtype))

        inner = nn.silu(product("gate", rows, c.ffn, INIT_STDDEV))
        inner = inner * product("up", rows, c.ffn, INIT_STDDEV)
        results = product("down", inner, hidden, out_stddev(c)).reshape(batch, -1, hidden)
        place = jnp.argsort(order, axis=-1) - jnp.take_along_axis(starts, experts, axis=1)
        slots = experts * places + jnp.minimum(place, places - 1)
        results = _rows(results, slots).reshape(batch, seq, k, hidden)
        is_placed = (place < places).reshape(batch, seq, k)
        mixed = jnp.einsum("bskh,bsk->bsh", results, weights * is_placed.astype(c.dtype))
        return mixed + LlamaMlp(c, width=c.shared_ffn, name="shared")(x)


def _rows(x: jax.Array, numbers: jax.Array) -> jax.Array:
    """Return rows of each sequence by their numbers."""
    return jnp.take_along_axis(x, numbers[..., None], axis=1)


# Functions that send tokens to experts and back, by their names in the places of collectives.
EXCHANGING = (PlacedExperts.__name__, _rows.__name__)


class KernelAttention(nn.Module):
    """Causal grouped-query attention by cuDNN's kernel."""

    config: LlamaConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """`[batch, seq, hidden]` to the same."""
        c = self.config

        def heads(name: str, count: int) -> jax.Array:
            return nn.DenseGeneral(
                (count, c.head_dim), use_bias=False, kernel_init=normal(INIT_STDDEV), name=name,
                **module_dtypes(c),
            )(x)  # fmt: skip

        query = rotate(heads("query", c.num_heads), c.rope_theta)
        key = rotate(heads("key", c.num_kv_heads), c.rope_theta)
        scale = 1 / math.sqrt(c.head_dim)
        value = heads("value", c.num_kv_heads)
        mixed = cudnn_attention(query, key, value, scale=scale, is_causal=True)
        return nn.DenseGeneral(
            c.hidden, axis=(-2, -1), use_bias=False, kernel_init=normal(out_stddev(c)), name="out",
            **module_dtypes(c),
        )(mixed)  # fmt: skip


class DeepSeekBlock(LlamaBlock):
    """One layer: attention and experts, each behind a norm, each added to the stream."""

    def attention(self) -> nn.Module:
        """Attention by cuDNN."""
        return KernelAttention(self.config, name="attention")

    def feed_forward(self) -> nn.Module:
        """Experts with places."""
        assert isinstance(self.config, ExpertLlamaConfig)
        return PlacedExperts(self.config, name="experts")


class DeepSeek(Llama):
    """The decoder: tokens `[batch, seq]` to logits `[batch, seq, vocab]`."""

    block: ClassVar[type[LlamaBlock]] = DeepSeekBlock


def deepseek_step(config: ExpertLlamaConfig, rows: int) -> tuple[PyTree, PyTree, PyTree]:
    """Return a training step, and shapes of its state and of its batch.

    Args:
        config: The model.
        rows: Sequences of a step.
    """
    model, optimizer = DeepSeek(config), with_master_copy(optax.adam(1e-4))
    tokens = jax.ShapeDtypeStruct((rows, config.seq_len), jnp.int32)

    def create(key: jax.Array) -> PyTree:
        params = model.init(key, jnp.zeros((1, config.seq_len), jnp.int32))["params"]
        return params, optimizer.init(params)

    def loss(params: PyTree, batch: PyTree) -> jax.Array:
        logits: PyTree = model.apply({"params": params}, batch["x"])
        return mean_cross_entropy(logits, batch["y"])

    def step(state: PyTree, batch: PyTree) -> PyTree:
        params, opt = state
        value, grads = value_and_grad(loss)(params, batch)
        updates, opt = optimizer.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), value

    return step, jax.eval_shape(create, jax.random.key(0)), {"x": tokens, "y": tokens}


def deepseek_config() -> ExpertLlamaConfig:
    """Return the model; parameters and gradients in bfloat16, a float32 copy in the optimizer."""
    return replace(expert_llama_config("deepseek-v3"), **BFLOAT16)


def make() -> tuple[PyTree, PyTree, PyTree]:
    """Return the step of `meshwise plan --step evaluation.deepseek.model:make`."""
    return deepseek_step(deepseek_config(), BATCH)
