"""Barriers of rematerialised blocks: those that stand together run as one."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp

import meshwise as mw
from meshwise.cluster.cpu import cpu_cluster
from meshwise.graph.barriers import BARRIER, joint_barriers
from oracle.one_device import traced

WIDTH = 8


def step(weights, rows):
    @jax.checkpoint
    def block(x, weight):
        return jnp.tanh(jnp.tanh(x @ weight) @ weight.T)

    def loss(weights):
        x = rows
        for weight in weights:
            x = block(x, weight)
        return jnp.mean(x**2)

    value, grads = jax.value_and_grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)], value


ARGUMENTS = ([jnp.ones((WIDTH, WIDTH)) / 8] * 2, jnp.ones((16, WIDTH)))


def test_what_enters_a_block_again_passes_with_its_cotangent() -> None:
    graph = traced(step, *ARGUMENTS, b=1).graph
    runs = joint_barriers(graph)
    every = [i for i, op in enumerate(graph.operators) if op.kind == BARRIER]
    assert [i for run in runs.values() for i in run] == every
    assert all(first == run[0] for first, run in runs.items())
    # Of each block its rows, its weight and the cotangent of its result.
    assert [len(run) for run in runs.values()] == [3, 3]


def test_barriers_of_a_block_are_lowered_as_one() -> None:
    parallel = mw.parallelize(step, method=mw.DataParallel(), cluster=cpu_cluster(2))
    text = parallel.program_text(*ARGUMENTS)
    found = re.findall(r"= optimization_barrier", text)
    assert len(found) == 2, text
