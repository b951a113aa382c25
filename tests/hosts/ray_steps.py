"""A driver: steps on two actors of Ray mean what they mean in one process."""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import ray

import meshwise as mw

SIZE, STEPS = 8, 3


class State(NamedTuple):
    params: dict[str, jax.Array]
    # A function that equals only itself, as the parts of an optimizer do.
    rule: jax.tree_util.Partial


def create_state(key: jax.Array) -> State:
    first, second = jax.random.split(key)
    params = {
        "w1": jax.random.normal(first, (SIZE, SIZE)),
        "w2": jax.random.normal(second, (SIZE, SIZE)),
    }
    rule = jax.tree_util.Partial(lambda rate, p, g: p - rate * g, jnp.float32(0.1))
    return State(params, rule)


def train_step(state: State, batch: dict[str, Any]) -> tuple[State, dict[str, Any]]:
    def loss_fn(params: dict[str, jax.Array]) -> jax.Array:
        return jnp.mean((jnp.tanh(batch["x"] @ params["w1"]) @ params["w2"] - batch["y"]) ** 2)

    loss, grads = mw.value_and_grad(loss_fn)(state.params)
    params = jax.tree.map(state.rule, state.params, grads)
    return State(params, state.rule), {"loss": loss}


def batches() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    shape = (SIZE, SIZE)
    return [{n: rng.normal(size=shape).astype(np.float32) for n in "xy"} for _ in range(STEPS)]


def check_meaning(cluster: Any) -> None:
    step = mw.parallelize(train_step, cluster=cluster, method=mw.IntraOp((4,)))
    state = step.init(create_state, jax.random.key(0), batches()[0])
    want = jax.jit(create_state)(jax.random.key(0))
    for batch in batches():
        state, told = step(state, batch)
        want, expected = jax.jit(train_step)(want, batch)
        assert abs(float(told["loss"]) - float(expected["loss"])) < 1e-5
    first = state.params["w1"]
    assert (first.shape, first.dtype, first.ndim) == ((SIZE, SIZE), np.float32, 2)
    for name, value in want.params.items():
        np.testing.assert_allclose(np.asarray(state.params[name]), value, atol=1e-5)
    # The state that came back is the state that was made: nothing was planned again.
    assert len(step.plans) == 1
    assert step.plan(state, batches()[0]).stages[0].mesh.num_devices == 4
    assert step.stats()["predicted_peak_bytes"] > 0
    check_values(cluster, state)


def check_contexts(cluster: Any) -> None:
    """Settings of a thread of the driver hold on the hosts."""

    def step(state: Any, batch: Any) -> Any:
        return state, jnp.mean(batch) + jnp.arange(3.0)

    parallel = mw.parallelize(step, cluster=cluster, method=mw.DataParallel(), donate_argnums=())
    given = (np.ones(4, np.float32), np.ones((8, 4), np.float32))
    for is_wide in (False, True, False):
        with jax.enable_x64(is_wide):
            (_, told), (_, want) = parallel(*given), jax.jit(step)(*given)
            assert told.dtype == want.dtype
            np.testing.assert_allclose(np.asarray(told), want, rtol=1e-6)
    with jax.disable_jit(), pytest.raises(mw.errors.TraceError, match="step runs on the hosts"):
        parallel(*given)


def check_values(cluster: Any, state: State) -> None:
    params = state.params
    assert cluster.run(lambda: None) is None
    doubled, text = cluster.run(lambda p: (jax.tree.map(lambda x: 2 * x, p), "done"), params)
    assert text == "done"
    doubled["w1"].block_until_ready()
    np.testing.assert_array_equal(doubled["w1"], 2 * np.asarray(params["w1"]))
    assert f"{cluster.run(jnp.sum, jnp.ones(3)):.1f}" == "3.0"
    large = np.arange(2**17)
    np.testing.assert_array_equal(cluster.run(jnp.asarray, large), large)
    held = len(cluster.run(values_here))
    del doubled
    cluster.run(values_here)
    assert len(cluster.run(values_here)) == held - 2


def values_here() -> list[int]:
    """Return the numbers of what the host of this process keeps."""
    import gc

    from meshwise.hosts.ray.host import Host

    (host,) = (x for x in gc.get_objects() if isinstance(x, Host))
    return list(host._values)


def check_errors(cluster: Any) -> None:
    step = mw.parallelize(train_step, cluster=cluster, method=mw.IntraOp((3, 5)))
    for _ in range(2):  # After an error of all hosts they go on.
        with pytest.raises(mw.errors.ClusterError, match=r"mesh shape \(3, 5\)") as info:
            step.plan(jax.eval_shape(create_state, jax.random.key(0)), batches()[0])
        assert "return step.plan(*args" in str(info.value.__cause__)  # where it was, on the host
    kept = cluster.run(jnp.ones, 3)
    with pytest.raises(mw.errors.ClusterError, match="pass it as an argument"):
        cluster.run(lambda: kept)
    with pytest.raises(ValueError, match="only here") as on_one:
        cluster.run(fail_on_one)
    assert "host 1" in on_one.value.__notes__[0]
    with pytest.raises(mw.errors.ClusterError, match="ended: host 1 failed with ValueError"):
        cluster.run(jnp.sum, kept)


def fail_on_one() -> None:
    if jax.process_index() == 1:
        raise ValueError("only here")
    jax.block_until_ready(jnp.zeros(1))


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    ray.init("local", num_cpus=2, include_dashboard=False)
    with mw.Cluster.ray(hosts=2, devices_per_host=2) as cluster:
        assert cluster.num_devices == 4
        check_meaning(cluster)
        check_contexts(cluster)
        check_errors(cluster)
    deadline = time.monotonic() + 30
    while ray.available_resources().get("CPU") != 2.0:  # What was reserved is free again.
        assert time.monotonic() < deadline, ray.available_resources()
        time.sleep(0.1)
    sys.stdout.write("passed\n")
