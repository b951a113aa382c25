"""What the transformers share: their configuration, checks of it, and the stack of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceConfig:
    """What every model of tokens with attention is made of.

    Attributes:
        vocab_size: Number of tokens.
        seq_len: Longest sequence; the number of positions where these are learned.
        hidden: Width of the residual stream.
        num_layers: Number of blocks.
        num_heads: Attention heads (of queries); divides `hidden`.
        dtype: Dtype of the computation, `float32` or `bfloat16`; softmax, gates and norms stay in
            float32, or in `param_dtype` when that is wider.
        param_dtype: Dtype of the parameters.
        remat: Keep only the inputs of each block and recompute the rest in the backward pass.
    """

    vocab_size: int
    seq_len: int
    hidden: int
    num_layers: int
    num_heads: int
    dtype: str = "float32"
    param_dtype: str = "float32"
    remat: bool = False

    def __post_init__(self) -> None:
        """Check what must divide.

        Raises:
            ValueError: `num_heads` does not divide `hidden`.
        """
        if self.hidden % self.num_heads:
            raise ValueError(f"{self.num_heads} heads do not divide hidden size {self.hidden}")

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.num_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig(SequenceConfig):
    """A transformer whose MLP is four times as wide as the stream.

    Attributes:
        dropout: Rate of every dropout; 0 leaves them out.
        scan_layers: One `nn.scan` over stacked parameters in place of `num_layers` blocks.
    """

    dropout: float = 0.0
    scan_layers: bool = False


def check_length(tokens: jax.Array, seq_len: int) -> None:
    """Raises ValueError if `tokens`, `[batch, seq]`, are longer than the model has positions."""
    if tokens.shape[1] > seq_len:
        raise ValueError(
            f"sequence of {tokens.shape[1]} tokens, but the model has {seq_len} positions"
        )


def run_blocks(
    block: Any, config: Any, x: jax.Array, *args: Any, static_args: Sequence[int] = ()
) -> jax.Array:
    """Send the stream through all blocks of a model; called from its `nn.compact` method.

    Args:
        block: Module class; `block(config)(x, *args)` gives the new stream and None.
        config: The configuration: `num_layers`, `scan_layers`, `remat`.
        x: The stream.
        *args: What every block gets besides.
        static_args: Positions in `args` of what is no array.
    """
    if config.remat:
        # Inside a scan the loop itself keeps XLA from merging the recomputation away.  The module
        # and the stream come before `args`.
        static = tuple(2 + i for i in static_args)
        block = nn.remat(block, static_argnums=static, prevent_cse=not config.scan_layers)
    if config.scan_layers:
        scanned = nn.scan(
            block,
            variable_axes={"params": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=nn.broadcast,  # pyright: ignore[reportArgumentType]  # typed int, takes this
            length=config.num_layers,
        )
        return scanned(config, name="blocks")(x, *args)[0]
    for layer in range(config.num_layers):
        x = block(config, name=f"block_{layer}")(x, *args)[0]
    return x
