"""A mistake of a user, and what all mistakes are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import meshwise as mw
from meshwise.cluster.cpu import cpu_cluster
from meshwise.errors import MeshwiseError

CLUSTER = cpu_cluster(4)
X = np.ones((8, 4), np.float32)
STATE = {"w": np.ones((4, 4), np.float32)}


def step(state: Any, batch: Any) -> Any:
    return {"w": state["w"] + batch.T @ batch}, jnp.mean(batch @ state["w"])


def plan(fun: Any = step, args: Any = (STATE, X), kwargs: Any = None, **options: Any) -> mw.Plan:
    asked = {"method": mw.DataParallel(), "cluster": CLUSTER} | options
    return mw.parallelize(fun, **asked).plan(*args, **(kwargs or {}))


class Case(NamedTuple):
    """A mistake, the error, and what its message says."""

    name: str
    make: Callable[[], Any]
    error: type[MeshwiseError]
    text: str
