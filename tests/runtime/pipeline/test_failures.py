"""What a failure leaves: the state of the last step, or an error that says that it is gone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

import meshwise as mw
from doubles.failing_programs import (
    failing_later,
    forget_failures,
    program_replaced,
    raising,
    raising_after,
    stacks_deleted_early,
)
from doubles.few import few
from doubles.layered_steps import assert_equal, unet_step
from doubles.scanned_steps import scanned_gpt, second_dim
from meshwise.errors import StateLostError
from meshwise.jax_compat.arrays import CAN_REFILL
from meshwise.runtime.pipeline.executable import has_room_for_stacks
from oracle.problem import quick_jit

pytestmark = pytest.mark.usefixtures("quick_steps", "x64")


@pytest.fixture(autouse=True)
def no_noise_at_exit() -> Iterator[None]:
    yield
    forget_failures()


OUT_OF_MEMORY = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")


@cache
def two_stages(make: Any) -> tuple[Any, mw.ParallelStep, Any]:
    """A step, its pipeline, which tests share, and its arguments."""
    step, args = make()
    cluster = mw.Cluster.virtual("2x p3.2xlarge")
    method = mw.Auto(stages=2, schedule="1f1b")
    return step, mw.parallelize(step, method=method, cluster=cluster, num_microbatches=2), args


def test_a_failure_before_the_update_leaves_the_state_one_inside_says_that_it_is_lost() -> None:
    step, staged, (state, batch) = two_stages(unet_step)
    one, now = quick_jit(step), state
    losses: list[float] = []
    for _ in range(3):
        now, loss = one(now, batch)
        losses.append(float(loss))
    state, loss = staged(state, batch)
    found = [float(loss)]

    before = [
        ("forward of layer 0", ValueError("no such value")),
        ("forward of layer 1", OUT_OF_MEMORY),
        ("backward of layer 1", OUT_OF_MEMORY),
        ("backward of layer 0", KeyboardInterrupt()),
    ]
    for name, error in before:
        with program_replaced(staged, name, raising(error)), pytest.raises(type(error)):
            staged(state, batch)
        assert not any(x.is_deleted() for x in jax.tree.leaves(state)), name
    # Dispatched well: the update must not be dispatched behind it.
    for name in ("forward of layer 1", "backward of layer 0"):
        with (
            program_replaced(staged, name, failing_later("memory ran out")),
            pytest.raises(jax.errors.JaxRuntimeError, match="memory ran out"),
        ):
            staged(state, batch)
        assert not any(x.is_deleted() for x in jax.tree.leaves(state)), name
    # The update of the first layer did not begin.
    with (
        program_replaced(staged, "apply of layer 0", raising(OUT_OF_MEMORY)),
        pytest.raises(jax.errors.JaxRuntimeError, match="Out of memory"),
    ):
        staged(state, batch)
    state, loss = staged(state, batch)
    found.append(float(loss))

    saved = jax.tree.map(host, state)
    for error in (OUT_OF_MEMORY, KeyboardInterrupt()):
        with (
            program_replaced(staged, "apply of layer 1", raising_after(error)),
            pytest.raises(StateLostError, match="donated state arrays were being updated") as told,
        ):
            staged(state, batch)
        assert type(error).__name__ in str(told.value) or str(error) in str(told.value)
        # From the checkpoint to the same losses.
        state, loss = staged(saved, batch)
        assert float(loss) == pytest.approx(losses[2], rel=1e-9)
    staged.saved("runs/gpt/checkpoints/2")
    with (
        program_replaced(staged, "apply of layer 1", raising_after(OUT_OF_MEMORY)),
        pytest.raises(StateLostError, match=r"Out of memory\); the last one is runs/gpt/check"),
    ):
        staged(state, batch)
    np.testing.assert_allclose(found, losses[:2], rtol=1e-9)


def host(x: Any) -> Any:
    """A copy that no donation takes away."""
    return x if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key) else np.array(x)


def test_an_update_that_fails_after_its_step_returned_loses_the_state() -> None:
    _, staged, (state, batch) = two_stages(unet_step)
    state, _ = staged(state, batch)
    staged.saved("runs/gpt/checkpoints/1")
    with program_replaced(staged, "apply of layer 1", failing_later("memory ran out")):
        state, _ = staged(state, batch)
    told = r"an earlier step failed .*memory ran out.*; the last one is runs/gpt/checkpoints/1"
    for _ in range(2):
        with pytest.raises(StateLostError, match=f"(?s){told}"):
            staged(state, batch)


def test_stacks_of_layers_outlive_a_failure_before_the_update() -> None:
    step, staged, (state, batch) = two_stages(second_dim)
    one = quick_jit(step)
    expected = jax.tree.leaves(one(one(state, batch)[0], batch))
    state, *_ = staged(state, batch)
    for name, error in (("forward", OUT_OF_MEMORY), ("backward", KeyboardInterrupt())):
        broken = program_replaced(staged, f"{name} of layer 1", raising(error))
        with broken, pytest.raises(type(error)):
            staged(state, batch)
        assert not any(x.is_deleted() for x in jax.tree.leaves(state))
    before = state
    state, *rest = staged(state, batch)
    assert_equal(jax.tree.leaves((state, rest)), expected)
    assert all(x.is_deleted() for x in jax.tree.leaves(before[0]))
    # Without memory for stacks beside their layers.
    executable: Any = staged._last
    pipeline, plan = executable.pipeline, executable.plan
    stages = tuple(replace(s, memory_bytes=s.peak_bytes) for s in plan.stages)
    sizes = pipeline.specs.bytes_on_device()
    assert has_room_for_stacks(pipeline, executable.ends, plan, sizes)
    full = replace(plan, stages=stages)
    assert not has_room_for_stacks(pipeline, executable.ends, full, sizes)


@pytest.mark.skipif(not CAN_REFILL, reason="this JAX gives deleted arrays no buffers")
@pytest.mark.parametrize("make", few([second_dim, scanned_gpt], [second_dim]))
def test_stacks_without_room_beside_their_layers_are_put_together_after_a_failure(
    make: Any,
) -> None:
    _, staged, (state, batch) = two_stages(make)
    state, *_ = staged(state, batch)
    saved = jax.tree.map(host, state)
    with stacks_deleted_early(staged):
        for name, error in (
            ("forward of layer 1", OUT_OF_MEMORY),
            ("backward of layer 0", KeyboardInterrupt()),
        ):
            seen: list[bool] = []

            def look(_: Any, error: BaseException = error, seen: list[bool] = seen) -> Any:
                def run(*args: Any) -> Any:
                    seen.append(any(x.is_deleted() for x in jax.tree.leaves(state)))
                    raise error

                return run

            with program_replaced(staged, name, look), pytest.raises(type(error)):
                staged(state, batch)
            assert seen == [True], name
            assert not any(x.is_deleted() for x in jax.tree.leaves(state)), name
            assert_equal(jax.tree.leaves(jax.tree.map(host, state)), jax.tree.leaves(saved))
    with (
        stacks_deleted_early(staged),
        program_replaced(staged, "apply of layer 1", raising_after(OUT_OF_MEMORY)),
        pytest.raises(StateLostError, match="Out of memory"),
    ):
        staged(state, batch)


@pytest.mark.skipif(CAN_REFILL, reason="this JAX gives deleted arrays their buffers back")
def test_stacks_without_room_that_cannot_be_put_together_are_said_to_be_lost() -> None:
    _, staged, (state, batch) = two_stages(second_dim)
    state, *_ = staged(state, batch)
    with (
        stacks_deleted_early(staged),
        program_replaced(staged, "forward of layer 1", raising_after(OUT_OF_MEMORY)),
        pytest.raises(StateLostError, match="Out of memory"),
    ):
        staged(state, batch)
