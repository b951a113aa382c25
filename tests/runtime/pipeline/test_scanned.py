"""Steps whose layers are stacks under `scan`, in stages: the oracle is JAX on one device."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw
from doubles.layered_steps import Step, assert_equal
from doubles.scanned_steps import Args, remat_scan, scanned_gpt, second_dim
from oracle.problem import quick_jit

pytestmark = pytest.mark.usefixtures("quick_steps", "x64")

CASES: dict[str, tuple[Callable[[], tuple[Step, Args]], int, str]] = {
    "layers in layers": (remat_scan, 3, "p3.2xlarge"),
    "another dim, not even": (second_dim, 2, "p3.2xlarge"),
    "gpt": (lambda: scanned_gpt(dropout=0.2), 2, "p3.8xlarge"),
    "gpt, recomputed, not even": (
        lambda: scanned_gpt(num_layers=3, dropout=0.2, remat=True),
        2,
        "p3.8xlarge",
    ),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if "gpt" in name else ()) for name in CASES],
)
def test_a_scan_in_stages_is_the_step(name: str) -> None:
    make, num_stages, host = CASES[name]
    step, args = make()
    state, batch = args
    expected = before = state
    single = quick_jit(step)
    cluster = mw.Cluster.virtual(f"{num_stages}x {host}")
    staged = mw.parallelize(
        step,
        method=mw.Auto(stages=num_stages, schedule="1f1b"),
        num_microbatches=4,
        cluster=cluster,
    )
    for _ in range(2):
        expected, *want = single(expected, batch)
        before = state
        state, *found = staged(state, batch)
        assert_equal(jax.tree.leaves((state, found)), jax.tree.leaves((expected, want)))
    # What the first step made was overwritten by the second one.
    assert all(x.is_deleted() for x in jax.tree.leaves(before[0]))
    assert {len(x.devices()) for x in jax.tree.leaves(state[0])} != {1}


def test_a_stack_that_is_read_beside_the_state_stays() -> None:
    step, (state, batch) = remat_scan()

    def with_reference(state, batch, reference):
        state, *rest = step(state, batch)
        distance = sum(jnp.sum(x) for x in jax.tree.leaves(reference))
        return state, *rest, distance

    single = jax.jit(with_reference)
    staged = mw.parallelize(
        with_reference,
        method=mw.Auto(stages=2, schedule="1f1b"),
        num_microbatches=4,
        cluster=mw.Cluster.virtual("2x p3.2xlarge"),
    )
    # Only what a step made lies where the next one wants it.
    first, *_ = staged(state, batch, jax.tree.map(jnp.copy, state[0]))
    expected = jax.tree.map(np.asarray, first)
    want = single(expected, batch, expected[0])
    found = staged(first, batch, first[0])
    assert_equal(jax.tree.leaves(found), jax.tree.leaves(want))
    assert_equal(jax.tree.leaves(first[0]), jax.tree.leaves(expected[0]))
