"""Donated arrays that are passed again or twice: errors and copies, not a crash."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshwise as mw
from meshwise.errors import StateLostError
from meshwise.runtime.donation import (
    Handover,
    check_alive,
    without_repeats,
    without_shared_memory,
)

BATCH = np.linspace(-1, 1, 32 * 8, dtype=np.float32).reshape(32, 8)


def step(state: Any, batch: Any) -> Any:
    def loss_fn(w: Any) -> Any:
        return jnp.mean((batch @ w) ** 2)

    loss, grad = mw.value_and_grad(loss_fn)(state["w"])
    w = state["w"] - 0.1 * grad
    return {"w": w, "mean": 0.9 * state["mean"] + 0.1 * w, "key": state["key"]}, loss


def new_state() -> Any:
    w = jnp.arange(64, dtype=jnp.float32).reshape(8, 8)
    return {"w": w, "mean": w, "key": jax.random.key(0)}


def on_all_devices(value: Any) -> jax.Array:
    mesh = jax.make_mesh((len(jax.devices()),), ("d",))
    return jax.device_put(value, NamedSharding(mesh, P()))


@pytest.fixture(scope="module")
def parallel() -> Any:
    return mw.parallelize(step, method=mw.DataParallel())


def wanted(state: Any, steps: int) -> Any:
    for _ in range(steps):
        state, _ = jax.jit(step)(state, BATCH)
    return state


def check_equal(found: Any, reference: Any) -> None:
    for name in ("w", "mean"):
        for shard in found[name].addressable_shards:
            np.testing.assert_allclose(
                shard.data, reference[name][shard.index], rtol=1e-5, atol=1e-6
            )


def test_state_that_was_given_away_is_refused_and_the_process_lives(parallel: Any) -> None:
    first, _ = parallel(new_state(), BATCH)
    second, _ = parallel(first, BATCH)
    for _ in range(2):
        with pytest.raises(
            StateLostError, match=r"argument 0/(mean|w|key) was donated to an earlier call"
        ):
            parallel(first, BATCH)
    check_equal(second, wanted(new_state(), 2))


def test_one_array_in_two_places_of_the_state(parallel: Any) -> None:
    state, _ = parallel(new_state(), BATCH)
    check_equal(state, wanted(new_state(), 1))
    # Now the array lies as the plan wants it, so that nothing is placed.
    again = state | {"mean": state["w"]}
    kept = {name: jnp.array(np.asarray(again[name])) for name in ("w", "mean")}
    reference = wanted(kept | {"key": jax.random.key(0)}, 1)
    state, _ = parallel(again, BATCH)
    check_equal(state, reference)


def test_two_arrays_that_share_memory_on_one_device(parallel: Any) -> None:
    w = new_state()["w"]
    state = new_state() | {"w": on_all_devices(w), "mean": on_all_devices(w)}
    state, _ = parallel(state, BATCH)
    check_equal(state, wanted(new_state(), 1))


def test_a_deleted_array_is_named() -> None:
    gone = jnp.zeros(3)
    gone.delete()
    check_alive([jnp.zeros(3), np.zeros(3), 1.0], ["a", "b", "c"])
    with pytest.raises(
        StateLostError, match=r"argument b was .*; pass the state which that call returned, or keep"
    ):
        check_alive([jnp.zeros(3), gone], ["a", "b"])


def test_only_donated_repeats_are_copied() -> None:
    a, b = jnp.zeros(3), jnp.ones(3)
    assert without_repeats([a, b], [0, 1]) == [a, b]
    found = without_repeats([a, b, a], [0, 1])
    assert found[0] is not a
    assert found[1] is b
    assert found[2] is a
    assert without_repeats([a, b, a], [1])[0] is a
    one = np.zeros(3)
    assert without_repeats([one, one], [0, 1])[0] is one


def test_shared_memory_is_found_shard_by_shard() -> None:
    source, other = jnp.zeros(3), on_all_devices(jnp.ones(3))
    a, b = on_all_devices(source), on_all_devices(source)
    found = without_shared_memory([a, other, b], [0, 1])
    assert found[0] is not a
    assert found[0].sharding.is_equivalent_to(a.sharding, 1)
    assert found[1] is other
    assert found[2] is b
    # What is known to share nothing is not looked at, and others are still compared with it.
    assert without_shared_memory([a, other, b], [0, 1], {0, 1})[0] is a
    assert without_shared_memory([a, other, b], [0, 2], {2})[0] is not a


def test_only_what_the_last_call_returned_is_fresh() -> None:
    handover = Handover([(0, 1), (2, 0)], [1])
    one, two, three = jnp.zeros(1), jnp.zeros(2), jnp.zeros(3)
    assert handover.fresh([one, two, three]) == set()
    handover.remember([three, one])
    assert handover.fresh([one, two, three]) == {0, 2}
    assert handover.fresh([three, two, three]) == {2}
    handover.remember([one, three])
    assert handover.fresh([one, two, three]) == set()


def test_a_whole_handover_is_alive_and_passed_once() -> None:
    handover = Handover([(0, 1), (2, 0)], [1])
    one, two, three = jnp.zeros(1), jnp.zeros(2), jnp.zeros(3)
    assert not handover.is_whole([one, two, three])
    handover.remember([three, one])
    assert handover.is_whole([one, two, three])
    assert handover.is_whole([one, np.zeros(2), three])
    assert not handover.is_whole([two, two, three])
    assert not handover.is_whole([one, one, three])
    assert not handover.is_whole([one, three, three])
    other = ref(two)  # as another step's handover has
    assert handover.is_whole([one, two, three])
    assert other() is two
    three.delete()
    assert not handover.is_whole([one, two, three])
    single = Handover([(1, 0)], [0])
    single.remember([two])
    assert single.is_whole([one, two])
    assert not single.is_whole([two, one])


def test_a_handover_keeps_nothing_alive() -> None:
    handover = Handover([(0, 0)], [])
    array = jnp.zeros(1)
    handover.remember([array])
    gone = ref(array)
    del array
    # Young objects only: to walk all that other tests left takes seconds.
    gc.collect(1)
    assert gone() is None
    assert not handover.is_whole([jnp.zeros(1)])
    assert handover.fresh([jnp.zeros(1)]) == set()


def test_a_state_that_another_program_took_is_refused(parallel: Any) -> None:
    state, _ = parallel(new_state(), BATCH)
    state, _ = parallel(state, BATCH)
    jax.jit(lambda tree: jax.tree.map(lambda x: x * 2, tree), donate_argnums=0)(
        {name: state[name] for name in ("w", "mean")}
    )
    with pytest.raises(StateLostError, match="argument 0/mean was donated"):
        parallel(state, BATCH)


def test_a_batch_that_was_deleted_is_refused_in_a_running_loop(parallel: Any) -> None:
    batch = jax.device_put(BATCH)
    state, _ = parallel(new_state(), batch)
    state, _ = parallel(state, BATCH)
    batch.delete()
    with pytest.raises(StateLostError, match="argument 1 was donated"):
        parallel(state, batch)
    check_equal(parallel(state, BATCH)[0], wanted(new_state(), 3))
