"""Parameters of a GPT from one form to the other: separate blocks and one stacked tree."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from meshwise.jax_compat.jaxprs import PyTree


def stack_layers(params: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """`block_0`, `block_1`, ... become `blocks`, with the layer as dim 0 of every leaf.

    Raises:
        ValueError: there is no `block_0`.
    """
    num_layers = sum(name.startswith("block_") for name in params)
    if num_layers == 0:
        raise ValueError("no block_0 among the parameters: are they stacked already?")
    blocks = [params[f"block_{layer}"] for layer in range(num_layers)]
    rest = {name: value for name, value in params.items() if not name.startswith("block_")}
    return {**rest, "blocks": jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks)}


def unstack_layers(params: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """Inverse of `stack_layers`.

    Raises:
        ValueError: there is no `blocks`.
    """
    if "blocks" not in params:
        raise ValueError("no blocks among the parameters: are they unstacked already?")
    blocks = params["blocks"]
    num_layers = jax.tree.leaves(blocks)[0].shape[0]
    rest = {name: value for name, value in params.items() if name != "blocks"}
    unstacked = {
        f"block_{layer}": jax.tree.map(lambda leaf, i=layer: leaf[i], blocks)
        for layer in range(num_layers)
    }
    return {**rest, **unstacked}
