"""NumPyro: variational inference and Markov chains."""

from __future__ import annotations

from typing import Any

import jax
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

import meshwise as mw
from oracle.problem import Problem
from programs.data import ADAM, ROWS, calls, floats, integers

WIDTH, CLASSES = 8, 4
LABELLED = calls(lambda seed: {"x": floats(seed, ROWS, WIDTH), "y": integers(seed, CLASSES, ROWS)})


def regression(x: Any, y: Any) -> None:
    """Logistic regression with normal priors."""
    weights = numpyro.sample("w", dist.Normal(0, 1).expand([WIDTH, CLASSES]).to_event(2))
    bias = numpyro.sample("bias", dist.Normal(0, 1).expand([CLASSES]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=x @ weights + bias), obs=y)


def variational_inference() -> Problem:
    """NumPyro: a step of SVI with a normal guide (`svi.update`)"""
    svi = SVI(regression, AutoNormal(regression), numpyro.optim.Adam(1e-2), Trace_ELBO())
    state = svi.init(jax.random.PRNGKey(0), **LABELLED[0][0])

    def step(state: Any, batch: Any) -> Any:
        return svi.update(state, **batch)

    return Problem(step=step, state=state, calls=LABELLED)


def chain_of_samples() -> Problem:
    """NumPyro: a step of the No-U-Turn sampler, a tree in nested `while_loop`s"""
    kernel = NUTS(regression, step_size=0.1, adapt_step_size=False, max_tree_depth=3)
    first = LABELLED[0][0]
    state = kernel.init(jax.random.PRNGKey(0), 0, None, (), first)

    def step(state: Any, batch: Any) -> Any:
        new = kernel.sample(state, (), batch)
        return new, new.potential_energy

    return Problem(step=step, state=state, calls=LABELLED)


def evidence_bound_as_a_loss() -> Problem:
    """NumPyro: the evidence bound (`Trace_ELBO().loss`) under an optimizer of Optax"""
    guide = AutoNormal(regression)
    svi = SVI(regression, guide, numpyro.optim.Adam(1e-2), Trace_ELBO())
    params = svi.get_params(svi.init(jax.random.PRNGKey(0), **LABELLED[0][0]))

    def step(state: Any, batch: Any) -> Any:
        params, opt, key = state
        key, now = jax.random.split(key)

        def loss_fn(params: Any) -> jax.Array:
            return Trace_ELBO().loss(now, params, regression, guide, **batch)

        loss, grads = mw.value_and_grad(loss_fn)(params)
        updates, opt = ADAM.update(grads, opt)
        return (optax.apply_updates(params, updates), opt, key), loss

    state = (params, ADAM.init(params), jax.random.PRNGKey(1))
    return Problem(step=step, state=state, calls=LABELLED)
