"""Planning on one mesh within a limit of memory, beside planning without one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import meshwise as mw
from meshwise.errors import InfeasibleError
from meshwise.models.sizes.gpt_sizes import gpt_config
from meshwise.models.steps import model_step

CLUSTER = "1x p3.16xlarge"
# Parts of the peak of the plan without a limit.
LIMITS = (0.95, 0.85, 0.7)


def memory_limits(quick: bool) -> dict[str, Any]:
    """Time `IntraOp()` on 8 devices within limits of memory, and without one."""
    programs = {"unet": _unet, "perceptron": _perceptron}
    if not quick:
        programs["gpt"] = lambda: model_step(gpt_config("small", num_layers=2), 32).abstract
    return {name: _program(make) for name, make in programs.items()}


def _program(make: Callable[[], Any]) -> dict[str, Any]:
    step, *args = make()
    _timed(step, args, None)  # kernels are compiled
    free_s, free = _timed(step, args, None)
    rows: dict[str, Any] = {"free": {"cpu_s": free_s, **free}}
    for part in LIMITS:
        seconds, found = _timed(step, args, int(part * free["peak_bytes"]))
        rows[str(part)] = {"cpu_s": seconds, "times_free": seconds / free_s, **found}
    return rows


def _timed(step: Any, args: Any, memory_bytes: int | None) -> tuple[float, dict[str, Any]]:
    parallel = mw.parallelize(
        step,
        method=mw.IntraOp(),
        cluster=mw.Cluster.virtual(CLUSTER),
        memory_bytes=memory_bytes,
    )
    start = time.process_time()
    try:
        plan: Any = parallel.plan(*args)
    except InfeasibleError as error:
        return time.process_time() - start, {"refused": str(error)[:120]}
    seconds = time.process_time() - start
    return seconds, {"step_time_s": plan.step_time_s, "peak_bytes": plan.peak_bytes}


def _trained(loss: Callable[[Any, Any], Any], init: Callable[[], Any], batch: Any) -> Any:
    """A step with Adam, the shapes of its state, and the batch."""
    tx = optax.adam(1e-3)

    def create() -> Any:
        params = init()
        return params, tx.init(params)

    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        value, grads = mw.value_and_grad(lambda p: loss(p, batch))(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), value

    return step, jax.eval_shape(create), batch


def _perceptron() -> Any:
    def init() -> Any:
        return [{"up": jnp.zeros((1024, 4096)), "down": jnp.zeros((4096, 1024))} for _ in range(4)]

    def loss(params: Any, batch: Any) -> Any:
        x = batch["x"]
        for layer in params:
            x = x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]
        return jnp.mean((x - batch["y"]) ** 2)

    rows = jax.ShapeDtypeStruct((512, 1024), jnp.float32)
    return _trained(loss, init, {"x": rows, "y": rows})


def _unet() -> Any:
    """Three levels with skips: convolutions, group normalisation."""
    channels = (32, 64, 128)

    def conv(x: Any, w: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers)

    def norm(x: Any, scale: Any) -> Any:
        groups = x.reshape(*x.shape[:3], 8, x.shape[3] // 8)
        mean = groups.mean((1, 2, 4), keepdims=True)
        variance = ((groups - mean) ** 2).mean((1, 2, 4), keepdims=True)
        return ((groups - mean) * jax.lax.rsqrt(variance + 1e-5)).reshape(x.shape) * scale

    def block(enters: int, leaves: int) -> Any:
        return [
            {"w": jnp.zeros((3, 3, a, leaves)), "scale": jnp.ones(leaves)} for a in (enters, leaves)
        ]

    def apply(layers: Any, x: Any) -> Any:
        for layer in layers:
            x = jax.nn.silu(norm(conv(x, layer["w"]), layer["scale"]))
        return x

    def init() -> Any:
        enters = (3, *channels)
        below = (*channels[1:], channels[-1])
        return {
            "down": [block(a, b) for a, b in zip(enters, channels, strict=False)],
            "middle": block(channels[-1], channels[-1]),
            "up": [block(a + b, b) for a, b in zip(below, channels, strict=True)][::-1],
            "out": jnp.zeros((1, 1, channels[0], 3)),
        }

    def loss(params: Any, batch: Any) -> Any:
        x, skips = batch["x"], []
        for layers in params["down"]:
            x = apply(layers, x)
            skips.append(x)
            n, h, w, c = x.shape
            x = x.reshape(n, h // 2, 2, w // 2, 2, c).mean((2, 4))
        x = apply(params["middle"], x)
        for layers, skip in zip(params["up"], reversed(skips), strict=True):
            x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
            x = apply(layers, jnp.concatenate([x, skip], -1))
        return jnp.mean((conv(x, params["out"]) - batch["y"]) ** 2)

    rows = jax.ShapeDtypeStruct((32, 32, 32, 3), jnp.float32)
    return _trained(loss, init, {"x": rows, "y": rows})
