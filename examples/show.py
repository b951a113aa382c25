"""What every example does with its step: plan, train, print."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax

import meshwise as mw


def virtual_devices(count: int = 8) -> None:
    """Make `count` CPU devices out of this host, unless there is an accelerator."""
    jax.config.update("jax_num_cpu_devices", count)


def train(
    train_step: Callable[..., Any],
    create_state: Callable[[jax.Array], Any],
    batches: Iterable[Any],
    **options: Any,
) -> Any:
    """Train on all devices of this process and print the plan and the loss.

    Args:
        train_step: `(state, batch) -> (state, metrics)`, written for one device.
        create_state: Makes the first state from a random key.
        batches: Pytrees of arrays with the batch in dim 0.
        **options: Of `mw.parallelize`.

    Returns:
        The last state, sharded as planned.
    """
    step = mw.parallelize(train_step, **options)
    state: Any = None
    for number, batch in enumerate(batches):
        if state is None:
            state = step.init(create_state, jax.random.key(0), batch)  # born sharded
            print(step.plan(state, batch).explain())
        state, metrics = step(state, batch)
        if number % 10 == 0:
            values = ", ".join(f"{k} {float(v):.4f}" for k, v in metrics.items())
            print(f"step {number:3d}  {values}")
    return state
