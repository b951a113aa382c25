"""Rows of one micro-batch, taken from those of the batch and joined again."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from meshwise.trace.block import take_block
from meshwise.trace.time.state import Batch, TimeState


def take_rows(value: Array, state: TimeState, batch: Batch, index: Array) -> Array:
    """Rows of one micro-batch; local on every device however the batch is split in space."""
    dim, parts = state.dim, state.parts
    rows = value.shape[dim]
    run = rows // (parts * batch.num_microbatches)
    head, tail = value.shape[:dim], value.shape[dim + 1 :]
    grid = value.reshape(*head, parts, batch.num_microbatches, run, *tail)
    taken = take_block(grid, index, 1, dim + 1).squeeze(dim + 1)
    return taken.reshape(*head, rows // batch.num_microbatches, *tail)


def join_rows(stacked: Array, state: TimeState, batch: Batch) -> Array:
    """Inverse of `take_rows` for rows stacked along a new dim 0."""
    dim, parts = state.dim, state.parts
    shape = stacked.shape[1:]
    run = shape[dim] // parts
    head, tail = shape[:dim], shape[dim + 1 :]
    grid = stacked.reshape(batch.num_microbatches, *head, parts, run, *tail)
    moved = jnp.moveaxis(grid, 0, dim + 1)
    return moved.reshape(*head, shape[dim] * batch.num_microbatches, *tail)
