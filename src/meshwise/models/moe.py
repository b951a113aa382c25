"""A decoder with a mixture of experts in every second layer (GShard), in Flax Linen.

The dense layers are GPT's.  In the others the MLP is one of E experts: tokens are taken in groups
of S, each is sent to its two best experts, and an expert takes at most C tokens of a group.
Dispatch and combine are einsums over `[group, token, expert, slot]`; a mesh axis that splits the
groups before and the experts inside means an all-to-all between.

An auxiliary loss keeps the experts equally busy: `E * sum_e f_e p_e`, f_e the share of tokens whose
best expert is e and p_e the mean gate of e; 1 where all are equal.  GShard takes both over a
group, so that the loss is a mean over groups; `balance="batch"` takes them over the whole batch
(Switch Transformer and most code since), and then micro-batches do not separate.

Source: Lepikhin et al. 2020 (GShard), algorithm 1, without its random dropping of second experts;
layers and sizes as Alpa's benchmark (`models/sizes/moe_sizes.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from meshwise.models.gpt import INIT_STDDEV, GptAttention, GptConfig
from meshwise.models.precision import module_dtypes, wide_dtype
from meshwise.models.transformer import SequenceConfig, check_length

Balance = Literal["group", "batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig(SequenceConfig):
    """What a GShard transformer is made of; blocks of odd number (from 0) have dense MLPs.

    Attributes:
        ffn: Width inside an MLP and inside an expert.
        num_experts: Experts E of a layer.
        group_size: Tokens S that compete for places; divides the tokens of a batch.
        capacity_factor: An expert has `C = capacity_factor * 2 S / E` places for a group.
        balance: What the balancing loss counts over.
    """

    ffn: int
    num_experts: int
    group_size: int
    capacity_factor: float = 1.0
    balance: Balance = "group"

    def __post_init__(self) -> None:
        """Check what must divide and what must be there.

        Raises:
            ValueError: heads do not divide, fewer than two experts, or no place in an expert.
        """
        SequenceConfig.__post_init__(self)
        if self.num_experts < 2:
            raise ValueError(f"two experts a token need at least 2 experts, not {self.num_experts}")
        if self.capacity < 1:
            raise ValueError(
                f"groups of {self.group_size} tokens leave no place in {self.num_experts} experts"
            )

    @property
    def capacity(self) -> int:
        """Places C of an expert for one group."""
        return int(self.capacity_factor * 2 * self.group_size / self.num_experts)

    @property
    def attention(self) -> GptConfig:
        """GPT's configuration of the same width, for its attention."""
        return GptConfig(
            vocab_size=self.vocab_size,
            seq_len=self.seq_len,
            hidden=self.hidden,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
        )


def top2_gating(gates: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Send each token to its two best experts, first come, first served.

    Second choices queue behind all first choices of the group.  The gates of the two experts
    are scaled to a sum of 1 before places are given out, so that a dropped choice is lost.

    Args:
        gates: Probabilities `[group, token, expert]`.
        capacity: Places of an expert for one group.

    Returns:
        Weights `[group, token, expert, slot]`, of at most two slots a token; the mask of first
        choices `[group, token, expert]`; both of the dtype of `gates`; and whether each of the two
        choices of a token found a place, `[group, token, 2]`.
    """
    num_experts = gates.shape[-1]
    first = jax.nn.one_hot(jnp.argmax(gates, axis=-1), num_experts, dtype=gates.dtype)
    others = jnp.where(first > 0, -1.0, gates)
    second = jax.nn.one_hot(jnp.argmax(others, axis=-1), num_experts, dtype=gates.dtype)
    gate_1, gate_2 = jnp.sum(gates * first, axis=-1), jnp.sum(gates * second, axis=-1)
    total = gate_1 + gate_2
    # How many of the group stand before each token in the queue of its expert.
    taken = jnp.sum(first, axis=-2, keepdims=True)
    queue_1 = jnp.sum((jnp.cumsum(first, axis=-2) - first) * first, axis=-1)
    queue_2 = jnp.sum((jnp.cumsum(second, axis=-2) - second + taken) * second, axis=-1)

    def weights(choice: jax.Array, gate: jax.Array, queue: jax.Array) -> jax.Array:
        # A place beyond the capacity is no slot: its row of the one-hot is zero.
        slot = jax.nn.one_hot(queue.astype(jnp.int32), capacity, dtype=gates.dtype)
        share = (gate / total)[..., None] * choice
        return share[..., :, None] * slot[..., None, :]

    placed = jnp.stack([queue_1, queue_2], axis=-1) < capacity
    combine = weights(first, gate_1, queue_1) + weights(second, gate_2, queue_2)
    return combine, first, placed


def load_balance(gates: jax.Array, first: jax.Array, balance: Balance) -> jax.Array:
    """Return the auxiliary loss, a scalar; 1 where the experts are equally busy.

    Args:
        gates: Probabilities `[group, token, expert]`.
        first: Mask of the first choices, the same shape.
        balance: Over what the two means are taken.
    """
    tokens = (1,) if balance == "group" else (0, 1)
    shares = jnp.mean(first, axis=tokens) * jnp.mean(gates, axis=tokens)
    return gates.shape[-1] * jnp.mean(jnp.sum(shares, axis=-1))


class Experts(nn.Module):
    """Gating and experts, `[batch, seq, hidden] -> ([batch, seq, hidden], balancing loss)`."""

    config: MoeConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Each token through its two experts.

        Raises:
            ValueError: `group_size` does not divide the number of tokens.
        """
        c = self.config
        num_tokens = x.shape[0] * x.shape[1]
        if num_tokens % c.group_size:
            raise ValueError(
                f"groups of {c.group_size} tokens do not divide {x.shape[0]} x {x.shape[1]} tokens"
            )

        def kernel(name: str, *shape: int) -> jax.Array:
            init = nn.initializers.normal(stddev=INIT_STDDEV)
            return self.param(name, init, shape, c.param_dtype)

        gate = kernel("gate", c.hidden, c.num_experts).astype(wide_dtype(c))
        up = kernel("up", c.num_experts, c.hidden, c.ffn).astype(c.dtype)
        down = kernel("down", c.num_experts, c.ffn, c.hidden).astype(c.dtype)
        grouped = x.reshape(num_tokens // c.group_size, c.group_size, c.hidden)
        gates = jax.nn.softmax(
            jnp.einsum("gsm,me->gse", grouped.astype(wide_dtype(c)), gate), axis=-1
        )
        combine, first, _ = top2_gating(gates, c.capacity)
        dispatch = (combine > 0).astype(c.dtype)
        inputs = jnp.einsum("gsec,gsm->egcm", dispatch, grouped)
        inner = nn.relu(jnp.einsum("egcm,emh->egch", inputs, up))
        outputs = jnp.einsum("egch,ehm->egcm", inner, down)
        mixed = jnp.einsum("gsec,egcm->gsm", combine.astype(c.dtype), outputs)
        return mixed.reshape(x.shape), load_balance(gates, first, c.balance)


class MoeMlp(nn.Module):
    """Two dense layers with ReLU between, `[batch, seq, hidden] -> [batch, seq, hidden]`."""

    config: MoeConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """The MLP of the layers without experts."""
        c = self.config
        init = nn.initializers.normal(stddev=INIT_STDDEV)
        x = nn.relu(nn.Dense(c.ffn, kernel_init=init, name="up", **module_dtypes(c))(x))
        return nn.Dense(c.hidden, kernel_init=init, name="down", **module_dtypes(c))(x)


class MoeBlock(nn.Module):
    """One layer: attention, then experts or an MLP, each behind a layer norm."""

    config: MoeConfig
    has_experts: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The new stream, and the balancing loss (0 without experts)."""
        c = self.config

        def norm(name: str, value: jax.Array) -> jax.Array:
            layer = nn.LayerNorm(dtype=wide_dtype(c), param_dtype=c.param_dtype, name=name)
            return layer(value).astype(c.dtype)

        x = x + GptAttention(c.attention, name="attention")(norm("norm_1", x), True)
        if self.has_experts:
            mixed, balance = Experts(c, name="experts")(norm("norm_2", x))
            return x + mixed, balance
        return x + MoeMlp(c, name="mlp")(norm("norm_2", x)), jnp.zeros((), wide_dtype(c))


class Moe(nn.Module):
    """The decoder: tokens `[batch, seq]` to logits `[batch, seq, vocab]` and balancing loss."""

    config: MoeConfig

    @nn.compact
    def __call__(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Logits of the next token at every position; mean balancing loss of the expert layers.

        Args:
            tokens: Integers below `vocab_size`, `[batch, seq]` with `seq <= seq_len`.

        Raises:
            ValueError: the sequence is longer than `seq_len`.
        """
        c = self.config
        check_length(tokens, c.seq_len)
        init = nn.initializers.normal(stddev=INIT_STDDEV)
        embed = nn.Embed(
            c.vocab_size, c.hidden, embedding_init=init, name="token_embedding", **module_dtypes(c)
        )
        positions = self.param("position_embedding", init, (c.seq_len, c.hidden), c.param_dtype)
        x = embed(tokens) + positions[: tokens.shape[1]].astype(c.dtype)
        block: Any = nn.remat(MoeBlock) if c.remat else MoeBlock
        losses = []
        for layer in range(c.num_layers):
            x, balance = block(c, layer % 2 == 0, name=f"block_{layer}")(x)
            if layer % 2 == 0:
                losses.append(balance)
        x = nn.LayerNorm(dtype=wide_dtype(c), param_dtype=c.param_dtype, name="final_norm")(x)
        return embed.attend(x.astype(c.dtype)), jnp.mean(jnp.stack(losses))
