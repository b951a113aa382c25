"""Plans of others that are run: refused with a reason, or the same numbers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwise as mw
from bad_input.pipelines import WEIGHTS, once
from hostile.mutations import documents, json_of
from hostile.searches import MANY, search
from hostile.valid import PLANS
from meshwise.cluster.cpu import cpu_cluster
from meshwise.errors import MeshwiseError
from meshwise.report.plan_file import plan_from_file

pytestmark = pytest.mark.usefixtures("quick_compile")

# The step of two of the plans, and its arguments; see `doubles.golden_plans`.
PRODUCTS = [PLANS[0], PLANS[1]]
W = np.linspace(-1.0, 1.0, 64 * 64, dtype=np.float32).reshape(64, 64)
X = np.linspace(1.0, -0.5, 256 * 64, dtype=np.float32).reshape(256, 64)
ROWS = np.linspace(1.0, -0.5, 32, dtype=np.float32).reshape(8, 4)


def products(w: Any, x: Any) -> Any:
    return (w + x.T @ x, jnp.sum(x @ w))


def check_runs(
    path: Path, step: Callable[..., Any], cluster: mw.Cluster, args: Any, **options: Any
) -> Callable[[bytes], None]:
    """Return the check of a plan file, which is written there, for a step."""
    wanted = jax.tree.leaves(step(*args))

    def check(data: bytes) -> None:
        path.write_bytes(data)
        try:
            method = mw.Replay(plan_from_file(path))
            parallel = mw.parallelize(step, method=method, cluster=cluster, **options)
            found = parallel(*args)
        except MeshwiseError:
            return
        for one, other in zip(jax.tree.leaves(found), wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-2)

    return check


@pytest.mark.parametrize(
    "count", [pytest.param(25, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.slow)]
)
def test_plans_of_one_mesh(count: int, tmp_path: Path) -> None:
    check = check_runs(tmp_path / "plan.json", products, cpu_cluster(4), (W, X))
    search(documents(PRODUCTS, json_of), check, count)


@pytest.mark.slow
def test_plans_of_two_stages(tmp_path: Path) -> None:
    cluster = cpu_cluster(2)
    asked = {"num_microbatches": 2, "donate_argnums": ()}
    args = (WEIGHTS, ROWS)
    plan = mw.parallelize(once, method=mw.Auto(stages=2), cluster=cluster, **asked).plan(*args)
    document = json.loads(plan.to_json())
    check = check_runs(tmp_path / "plan.json", once, cluster, args, **asked)
    check(json_of(document))
    search(documents([document], json_of), check, 500)
