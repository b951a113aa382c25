"""Learning from rewards and preferences."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

import meshwise as mw
from oracle.problem import Problem
from programs.data import ADAM, ROWS, calls, floats, integers, weight

WIDTH, HIDDEN, ACTIONS = 8, 16, 4


def policy_with_epochs_inside() -> Problem:
    """PPO: advantages by a reverse `scan`, epochs of shuffled mini-batches inside the step"""
    horizon, epochs, parts = 4, 2, 2

    def heads(p: Any, seen: jax.Array) -> Any:
        h = jnp.tanh(seen @ p["first"])
        return jax.nn.log_softmax(h @ p["policy"]), (h @ p["value"])[..., 0]

    def advantages(rewards: jax.Array, values: jax.Array) -> jax.Array:
        after = jnp.concatenate([values[:, 1:], jnp.zeros_like(values[:, :1])], 1)
        deltas = (rewards + 0.9 * after - values).T

        def back(total: jax.Array, delta: jax.Array) -> Any:
            total = delta + 0.8 * total
            return total, total

        return jax.lax.scan(back, jnp.zeros_like(deltas[0]), deltas, reverse=True)[1].T

    def loss_fn(p: Any, part: Any) -> jax.Array:
        log_probs, values = heads(p, part["seen"])
        now = jnp.take_along_axis(log_probs, part["action"][:, None], 1)[:, 0]
        ratio = jnp.exp(now - part["before"])
        gain = jnp.minimum(ratio * part["gain"], jnp.clip(ratio, 0.8, 1.2) * part["gain"])
        entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, -1)
        return jnp.mean(0.5 * (values - part["target"]) ** 2 - gain - 0.01 * entropy)

    def step(state: Any, batch: Any) -> Any:
        params, opt, key = state
        key, for_action, shuffling = jax.random.split(key, 3)
        log_probs, values = heads(params, batch["seen"])
        action = jax.random.categorical(for_action, log_probs)
        gain = advantages(batch["reward"], values)
        rows = {
            "seen": batch["seen"],
            "action": action,
            "before": jnp.take_along_axis(log_probs, action[..., None], -1)[..., 0],
            "gain": (gain - gain.mean()) / (gain.std() + 1e-6),
            "target": gain + values,
        }
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows)

        def epoch(carry: Any, key: jax.Array) -> Any:
            order = jax.random.permutation(key, ROWS * horizon)
            shuffled = jax.tree.map(lambda x: x[order].reshape(parts, -1, *x.shape[1:]), flat)

            def update(carry: Any, part: Any) -> Any:
                params, opt = carry
                loss, grads = jax.value_and_grad(loss_fn)(params, part)
                updates, opt = ADAM.update(grads, opt)
                return (optax.apply_updates(params, updates), opt), loss

            return jax.lax.scan(update, carry, shuffled)

        (params, opt), losses = jax.lax.scan(
            epoch, (params, opt), jax.random.split(shuffling, epochs)
        )
        return (params, opt, key), losses.mean()

    params = {
        "first": weight(0, WIDTH, HIDDEN),
        "policy": weight(1, HIDDEN, ACTIONS),
        "value": weight(2, HIDDEN, 1),
    }
    batches = calls(
        lambda seed: {
            "seen": floats(seed, ROWS, horizon, WIDTH),
            "reward": floats(seed + 1, ROWS, horizon),
        }
    )
    return Problem(step=step, state=(params, ADAM.init(params), jax.random.key(0)), calls=batches)


def policy_near_itself() -> Problem:
    """Proximal ratio in one update: the loss reads the parameters a second way, as constants"""

    def log_prob(p: Any, batch: Any) -> jax.Array:
        log_probs = jax.nn.log_softmax(jnp.tanh(batch["seen"] @ p["first"]) @ p["second"])
        return jnp.take_along_axis(log_probs, batch["action"][:, None], 1)[:, 0]

    def step(state: Any, batch: Any) -> Any:
        params, opt = state

        def loss_fn(p: Any) -> jax.Array:
            ratio = jnp.exp(log_prob(p, batch) - log_prob(params, batch))
            return -jnp.mean(jnp.minimum(ratio, 1.2) * batch["gain"])

        loss, grads = mw.value_and_grad(loss_fn)(params)
        updates, opt = ADAM.update(grads, opt)
        return (optax.apply_updates(params, updates), opt), loss

    params = {"first": weight(0, WIDTH, HIDDEN), "second": weight(1, HIDDEN, ACTIONS)}
    batches = calls(
        lambda seed: {
            "seen": floats(seed, ROWS, WIDTH),
            "action": integers(seed, ACTIONS, ROWS),
            "gain": floats(seed + 1, ROWS),
        }
    )
    return Problem(step=step, state=(params, ADAM.init(params)), calls=batches)


def preferences_without_a_reward_model() -> Problem:
    """DPO: log-ratios of chosen and rejected texts against a frozen reference"""
    vocab, length = 16, 6

    def log_prob(p: Any, ids: jax.Array) -> jax.Array:
        logits = jnp.tanh(p["embedding"][ids[:, :-1]] @ p["mix"]) @ p["head"]
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), ids[:, 1:, None], -1)
        return picked[..., 0].sum(-1)

    def step(state: Any, batch: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            both = jnp.concatenate([batch["chosen"], batch["rejected"]])
            gain = log_prob(params, both) - log_prob(state["reference"], both)
            chosen, rejected = jnp.split(gain, 2)
            margin = 0.1 * (chosen - rejected)
            return -jnp.mean(jax.nn.log_sigmoid(margin)), jnp.mean(margin > 0)

        (loss, right), grads = mw.value_and_grad(loss_fn, has_aux=True)(state["params"])
        updates, opt = ADAM.update(grads, state["opt"])
        params = optax.apply_updates(state["params"], updates)
        return {**state, "params": params, "opt": opt}, (loss, right)

    def params(seed: int) -> dict[str, jax.Array]:
        return {
            "embedding": weight(seed, vocab, HIDDEN),
            "mix": weight(seed + 1, HIDDEN, HIDDEN),
            "head": weight(seed + 2, HIDDEN, vocab),
        }

    batches = calls(
        lambda seed: {
            "chosen": integers(seed, vocab, ROWS, length),
            "rejected": integers(seed + 1, vocab, ROWS, length),
        }
    )
    state = {"params": params(0), "reference": params(5), "opt": ADAM.init(params(0))}
    return Problem(step=step, state=state, calls=batches)


def values_with_a_target_network() -> Problem:
    """DQN: double Q-learning with a soft target network and Huber's loss"""

    def values(p: Any, seen: jax.Array) -> jax.Array:
        return jax.nn.relu(seen @ p["first"]) @ p["second"]

    def step(state: Any, batch: Any) -> Any:
        def loss_fn(params: Any) -> jax.Array:
            best = values(params, batch["next"]).argmax(-1)
            there = values(state["target"], batch["next"])
            goal = batch["reward"] + 0.9 * jnp.take_along_axis(there, best[:, None], 1)[:, 0]
            now = jnp.take_along_axis(values(params, batch["seen"]), batch["action"][:, None], 1)
            return optax.huber_loss(now[:, 0], jax.lax.stop_gradient(goal)).mean()

        loss, grads = mw.value_and_grad(loss_fn)(state["params"])
        updates, opt = ADAM.update(grads, state["opt"])
        params = optax.apply_updates(state["params"], updates)
        target = optax.incremental_update(params, state["target"], 0.05)
        return {"params": params, "target": target, "opt": opt}, loss

    params = {"first": weight(0, WIDTH, HIDDEN), "second": weight(1, HIDDEN, ACTIONS)}
    batches = calls(
        lambda seed: {
            "seen": floats(seed, ROWS, WIDTH),
            "next": floats(seed + 1, ROWS, WIDTH),
            "reward": floats(seed + 2, ROWS),
            "action": integers(seed, ACTIONS, ROWS),
        }
    )
    state = {"params": params, "target": jax.tree.map(jnp.copy, params), "opt": ADAM.init(params)}
    return Problem(step=step, state=state, calls=batches)


def evolution_strategies() -> Problem:
    """Evolution strategies: no gradient; antithetic noise of many members by `vmap`"""
    members = 8

    def score(p: Any, batch: Any) -> jax.Array:
        return -jnp.mean((jnp.tanh(batch["x"] @ p["first"]) @ p["second"] - batch["y"]) ** 2)

    def step(state: Any, batch: Any) -> Any:
        params, key = state
        key, now = jax.random.split(key)
        flat, unravel = jax.flatten_util.ravel_pytree(params)
        half = jax.random.normal(now, (members // 2, flat.size))
        noise = jnp.concatenate([half, -half])
        scores = jax.vmap(lambda n: score(unravel(flat + 0.1 * n), batch))(noise)
        ranks = jnp.argsort(jnp.argsort(scores)) / (members - 1) - 0.5
        return (unravel(flat + 0.05 * ranks @ noise / members), key), scores

    params = {"first": weight(0, WIDTH, HIDDEN), "second": weight(1, HIDDEN, ACTIONS)}
    batches = calls(lambda seed: {"x": floats(seed, ROWS, WIDTH), "y": floats(seed, ROWS, ACTIONS)})
    return Problem(step=step, state=(params, jax.random.key(0)), calls=batches)
