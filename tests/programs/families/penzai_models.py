"""Penzai: layers with named axes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from penzai import pz

import meshwise as mw
from oracle.problem import Problem
from programs.data import ADAM, ROWS, calls, floats

WIDTH, HIDDEN = 8, 16
PAIRS = calls(lambda seed: {"x": floats(seed, ROWS, WIDTH), "y": floats(seed + 1, ROWS, WIDTH)})


def layers_with_named_axes() -> Problem:
    """Penzai: a sequence of affine layers over named axes, parameters unbound from the model"""

    def affine(name: str, inputs: int, outputs: int) -> Any:
        return pz.nn.Affine.from_config(
            name=name,
            init_base_rng=jax.random.key(0),
            input_axes={"features": inputs},
            output_axes={"features": outputs},
        )

    model = pz.nn.Sequential(
        [
            affine("first", WIDTH, HIDDEN),
            pz.nn.Elementwise(jax.nn.gelu),
            pz.nn.RMSLayerNorm.from_config("norm", jax.random.key(0), {"features": HIDDEN}),
            affine("second", HIDDEN, WIDTH),
        ]
    )
    unbound, variables = pz.unbind_params(model, freeze=True)

    def loss_fn(variables: Any, batch: Any) -> jax.Array:
        bound = pz.bind_variables(unbound, variables)
        x = pz.nx.wrap(batch["x"]).tag("batch", "features")
        out = bound(x).unwrap("batch", "features")
        return jnp.mean((out - batch["y"]) ** 2)

    def step(state: Any, batch: Any) -> Any:
        variables, opt = state
        loss, grads = mw.value_and_grad(loss_fn)(variables, batch)
        updates, opt = ADAM.update(grads, opt)
        return (jax.tree.map(jnp.add, variables, updates), opt), loss

    return Problem(step=step, state=(variables, ADAM.init(variables)), calls=PAIRS)
