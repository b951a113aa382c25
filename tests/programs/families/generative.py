"""Models that draw: autoencoders, diffusion, flows, energies, adversaries."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwise as mw
from oracle.problem import Problem
from programs.data import ADAM, ROWS, calls, floats, trained, weight

WIDTH, HIDDEN = 8, 16
POINTS = calls(lambda seed: floats(seed, ROWS, WIDTH))


def variational_autoencoder() -> Problem:
    """VAE: reparametrised draws, the key (`jax.random.key`) in the state"""

    def loss_fn(p: Any, key: jax.Array, x: jax.Array) -> Any:
        mean, log_var = jnp.split(jnp.tanh(x @ p["encode"]) @ p["latent"], 2, -1)
        z = mean + jnp.exp(0.5 * log_var) * jax.random.normal(key, mean.shape)
        rebuilt = jnp.mean(jnp.sum((jnp.tanh(z @ p["decode"]) @ p["out"] - x) ** 2, -1))
        divergence = -0.5 * jnp.mean(jnp.sum(1 + log_var - mean**2 - jnp.exp(log_var), -1))
        return rebuilt + divergence, {"rebuilt": rebuilt, "divergence": divergence}

    def step(state: Any, x: jax.Array) -> Any:
        key, now = jax.random.split(state["key"])
        (loss, aux), grads = mw.value_and_grad(loss_fn, has_aux=True)(state["params"], now, x)
        updates, opt = ADAM.update(grads, state["opt"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "opt": opt, "key": key}, (loss, aux)

    params = {
        "encode": weight(0, WIDTH, HIDDEN),
        "latent": weight(1, HIDDEN, 8),
        "decode": weight(2, 4, HIDDEN),
        "out": weight(3, HIDDEN, WIDTH),
    }
    state = {"params": params, "opt": ADAM.init(params), "key": jax.random.key(0)}
    return Problem(step=step, state=state, calls=POINTS)


def denoising_diffusion() -> Problem:
    """Diffusion (DDPM): noise of drawn times, moving average (EMA) of the parameters"""
    betas = np.linspace(1e-3, 0.2, 20, dtype=np.float32)
    kept = np.cumprod(1 - betas)

    def predict(p: Any, x: jax.Array, time: jax.Array) -> jax.Array:
        angles = time[:, None] * jnp.exp(-jnp.arange(4.0))
        inputs = jnp.concatenate([x, jnp.sin(angles), jnp.cos(angles)], -1)
        return jax.nn.silu(inputs @ p["first"] + p["bias"]) @ p["second"]

    def step(state: Any, x: jax.Array) -> Any:
        key, for_time, for_noise = jax.random.split(state["key"], 3)
        time = jax.random.randint(for_time, x.shape[:1], 0, len(betas))
        noise = jax.random.normal(for_noise, x.shape)
        share = jnp.asarray(kept)[time][:, None]
        noisy = jnp.sqrt(share) * x + jnp.sqrt(1 - share) * noise

        def loss_fn(p: Any) -> jax.Array:
            return jnp.mean((predict(p, noisy, time.astype(jnp.float32)) - noise) ** 2)

        loss, grads = mw.value_and_grad(loss_fn)(state["params"])
        updates, opt = ADAM.update(grads, state["opt"])
        params = optax.apply_updates(state["params"], updates)
        average = optax.incremental_update(params, state["average"], 0.01)
        return {"params": params, "average": average, "opt": opt, "key": key}, loss

    params = {
        "first": weight(0, WIDTH + 8, HIDDEN),
        "bias": jnp.zeros(HIDDEN),
        "second": weight(1, HIDDEN, WIDTH),
    }
    state = {
        "params": params,
        "average": jax.tree.map(jnp.copy, params),
        "opt": ADAM.init(params),
        "key": jax.random.key(1),
    }
    return Problem(step=step, state=state, calls=POINTS)


def coupling_flow() -> Problem:
    """Normalising flow (RealNVP): couplings with log-determinants, permuted dims"""
    order = np.random.default_rng(0).permutation(WIDTH)

    def loss_fn(params: Any, x: jax.Array) -> jax.Array:
        log_det = jnp.zeros(x.shape[0])
        for p in params:
            first, second = jnp.split(x[:, order], 2, axis=-1)
            scale, shift = jnp.split(jnp.tanh(first @ p["first"]) @ p["second"], 2, axis=-1)
            scale = jnp.tanh(scale)
            x = jnp.concatenate([first, second * jnp.exp(scale) + shift], axis=-1)
            log_det += scale.sum(-1)
        return jnp.mean(0.5 * jnp.sum(x**2, -1) - log_det)

    half = WIDTH // 2
    params = [
        {"first": weight(i, half, HIDDEN), "second": 0.1 * weight(i + 9, HIDDEN, WIDTH)}
        for i in range(3)
    ]
    return trained(loss_fn, params, POINTS)


def energy_with_langevin_draws() -> Problem:
    """Energy-based model: Langevin dynamics inside the step, by gradients in a `fori_loop`"""

    def energy(p: Any, x: jax.Array) -> jax.Array:
        return (jax.nn.silu(x @ p["first"]) @ p["second"])[..., 0]

    def step(state: Any, x: jax.Array) -> Any:
        params, opt, key = state
        key, now = jax.random.split(key)

        def walk(i: jax.Array, y: jax.Array) -> jax.Array:
            slope = jax.grad(lambda y: energy(params, y).sum())(y)
            return y - 0.1 * slope + 0.05 * jax.random.normal(jax.random.fold_in(now, i), y.shape)

        drawn = jax.lax.fori_loop(0, 4, walk, jax.random.normal(now, x.shape))

        def loss_fn(params: Any) -> jax.Array:
            low, high = energy(params, x), energy(params, drawn)
            return jnp.mean(low - high) + 0.1 * jnp.mean(low**2 + high**2)

        loss, grads = mw.value_and_grad(loss_fn)(params)
        updates, opt = ADAM.update(grads, opt)
        return (optax.apply_updates(params, updates), opt, key), loss

    params = {"first": weight(0, WIDTH, HIDDEN), "second": weight(1, HIDDEN, 1)}
    state = (params, ADAM.init(params), jax.random.key(0))
    return Problem(step=step, state=state, calls=POINTS)


def adversary_with_gradient_penalty() -> Problem:
    """GAN of Wasserstein with a penalty of gradients, several turns of the critic in a `scan`"""

    def critic(p: Any, x: jax.Array) -> jax.Array:
        return (jax.nn.leaky_relu(x @ p["first"]) @ p["second"])[..., 0]

    def generate(p: Any, key: jax.Array, rows: int) -> jax.Array:
        return jnp.tanh(jax.random.normal(key, (rows, 4)) @ p["first"]) @ p["second"]

    def step(state: Any, x: jax.Array) -> Any:
        key, now = jax.random.split(state["key"])

        def turn(p: Any, key: jax.Array) -> Any:
            def loss_fn(p: Any) -> jax.Array:
                fake = generate(state["generator"], key, x.shape[0])
                between = 0.5 * (x + fake)
                slopes = jax.vmap(jax.grad(critic, argnums=1), (None, 0))(p, between)
                penalty = jnp.mean((jnp.sqrt(jnp.sum(slopes**2, -1) + 1e-6) - 1) ** 2)
                return jnp.mean(critic(p, fake) - critic(p, x)) + penalty

            loss, grads = jax.value_and_grad(loss_fn)(p)
            return jax.tree.map(lambda p, g: p - 0.05 * g, p, grads), loss

        judge, losses = jax.lax.scan(turn, state["critic"], jax.random.split(now, 2))

        def loss_fn(p: Any) -> jax.Array:
            return -jnp.mean(critic(judge, generate(p, now, x.shape[0])))

        loss, grads = mw.value_and_grad(loss_fn)(state["generator"])
        generator = jax.tree.map(lambda p, g: p - 0.05 * g, state["generator"], grads)
        return {"generator": generator, "critic": judge, "key": key}, (loss, losses)

    state = {
        "generator": {"first": weight(0, 4, HIDDEN), "second": weight(1, HIDDEN, WIDTH)},
        "critic": {"first": weight(2, WIDTH, HIDDEN), "second": weight(3, HIDDEN, 1)},
        "key": jax.random.key(0),
    }
    return Problem(step=step, state=state, calls=POINTS)
