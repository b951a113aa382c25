"""Small models cut into their blocks, and the costs of hand-made runs."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import meshwise as mw
from meshwise.baselines.pipelines.block_layers import block_ranges
from meshwise.inter.search.search_space import SearchOptions
from meshwise.models.expert_llama import ExpertLlama
from meshwise.models.gpt import Gpt
from meshwise.models.losses import mean_cross_entropy
from meshwise.models.moe import Moe
from meshwise.models.sizes.expert_llama_sizes import expert_llama_config
from meshwise.models.sizes.gpt_sizes import gpt_config
from meshwise.models.sizes.moe_sizes import moe_config
from meshwise.simulate.chunks import Chunk
from meshwise.trace.attention.replace import with_attention
from meshwise.trace.experts.replace import with_experts
from meshwise.trace.layers.chain import chain_of, operator_chain
from meshwise.trace.layers.layering import Layering
from meshwise.trace.layers.split import split_step
from meshwise.trace.step import StepSignature, open_step

SIGNATURE = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")


def layered(
    model: Any, loss: Any, inputs: Any, batch: Any, rows: int, *, joins_attention: bool = False
) -> Layering:
    """A training step with Adam, cut into the blocks of its model."""
    tx = optax.adam(1e-3)

    def create(key: jax.Array) -> Any:
        params = model.init(key, inputs)["params"]
        return params, tx.init(params)

    def step(state: Any, batch: Any) -> Any:
        params, opt = state
        value, grads = mw.value_and_grad(
            lambda p: loss(model.apply({"params": p}, batch[0]), batch)
        )(params)
        updates, opt = tx.update(grads, opt, params)
        return (optax.apply_updates(params, updates), opt), value

    state = jax.eval_shape(create, jax.random.key(0))
    opened = open_step(step, (state, batch), {}, SIGNATURE)
    opened = with_experts(opened)
    if joins_attention:
        opened = with_attention(opened)
        assert opened is not None
    split = split_step(opened.closed, opened.batch_dims, opened.aliases, opened.names)
    chain = chain_of(split)
    return Layering(split, chain, block_ranges(operator_chain(chain)), rows)


def gpt_layers(rows: int, *, joins_attention: bool = False, **changes: Any) -> Layering:
    """A GPT of a few narrow blocks."""
    sizes = {"hidden": 64, "num_heads": 4, "seq_len": 32, "num_layers": 4} | changes
    config = gpt_config("tiny", scan_layers=False, **sizes)
    return _of_tokens(Gpt(config), config.seq_len, rows, joins_attention=joins_attention)


def dropless_layers(rows: int) -> Layering:
    """A Llama of experts without capacities."""
    config = expert_llama_config("tiny", num_experts=8)
    return _of_tokens(ExpertLlama(config), config.seq_len, rows)


def _of_tokens(model: Any, length: int, rows: int, *, joins_attention: bool = False) -> Layering:
    """A model that predicts tokens of sequences."""
    tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    return layered(
        model,
        lambda out, b: mean_cross_entropy(out, b[1]),
        jnp.zeros((1, length), jnp.int32),
        (tokens, tokens),
        rows,
        joins_attention=joins_attention,
    )


class MaskedBlock(nn.Module):
    """Attention under a padding mask, some times, and a dense layer."""

    per_block: int

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        heads = (*x.shape[:2], 4, x.shape[2] // 4)
        for _ in range(self.per_block):
            q, k, v = (nn.Dense(x.shape[2])(x).reshape(heads) for _ in range(3))
            scores = jnp.where(mask[:, None, None], jnp.einsum("bqhd,bkhd->bhqk", q, k), -1e9)
            mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
            x = x + nn.Dense(x.shape[2])(mixed.reshape(x.shape))
        return x + nn.gelu(nn.Dense(x.shape[2])(x))


class Masked(nn.Module):
    """Equal blocks with attention under a padding mask."""

    per_block: int

    @nn.compact
    def __call__(self, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
        x, mask = batch
        for _ in range(3):
            x = MaskedBlock(self.per_block)(x, mask)
        return x


def masked_attention_layers(rows: int, *, per_block: int, joins_attention: bool) -> Layering:
    """Blocks with attention of four heads under a padding mask of the batch."""
    x = jax.ShapeDtypeStruct((rows, 32, 64), jnp.float32)
    mask = jax.ShapeDtypeStruct((rows, 32), jnp.bool_)
    one = (jnp.zeros((1, *x.shape[1:])), jnp.ones((1, 32), jnp.bool_))
    return layered(
        Masked(per_block),
        lambda out, batch: jnp.mean(out**2),
        one,
        ((x, mask), x),
        rows,
        joins_attention=joins_attention,
    )


def moe_layers(rows: int, balance: float = 0.0, **changes: Any) -> Layering:
    """A mixture of experts; by default without its balancing loss, which crosses every cut."""
    config = moe_config("tiny", **({"num_layers": 4, "num_experts": 8} | changes))
    tokens = jax.ShapeDtypeStruct((rows, config.seq_len), jnp.int32)

    def loss(out: Any, batch: Any) -> Any:
        value = mean_cross_entropy(out[0], batch[1])
        return value + balance * out[1] if balance else value

    whole = jnp.zeros(tokens.shape, jnp.int32)
    return layered(Moe(config), loss, whole, (tokens, tokens), rows)


class Perceptron(nn.Module):
    """Blocks of two dense layers."""

    width: int
    inner: int
    blocks: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(self.blocks):
            x = nn.Dense(self.width)(nn.relu(nn.Dense(self.inner)(x)))
        return x


def perceptron_layers(rows: int, width: int, inner: int, blocks: int = 4) -> Layering:
    """Equal blocks and nothing else but a loss."""
    x = jax.ShapeDtypeStruct((rows, width), jnp.float32)
    return layered(
        Perceptron(width, inner, blocks),
        lambda out, b: jnp.mean(jnp.square(out - b[1])),
        jnp.zeros((1, width)),
        (x, x),
        rows,
    )


def options(layers: Layering, **changes: Any) -> SearchOptions:
    """Of the search."""
    flop = float(sum(layers.cutter.chain.flop))
    return SearchOptions(batch_size=layers.batch_size, step_flop=flop, **changes)


def run_cost(**changes: float) -> Chunk:
    """A run that takes a second forward and two backward."""
    base = {
        "forward_s": 1.0,
        "backward_s": 2.0,
        "once_s": 0.0,
        "resident_bytes": 10.0,
        "microbatch_bytes": 1.0,
        "temporary_bytes": 0.0,
    }
    return Chunk(**(base | changes))
