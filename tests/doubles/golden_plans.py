"""Plans in files, for tests that need some plan and do not ask how it is found.

`test_golden_plans.py` plans each of them again; `pytest --update-goldens` writes the files anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

import bad_input.case
import meshwise as mw
from meshwise.cluster.cpu import cpu_cluster
from meshwise.models.named import model_config
from meshwise.models.steps import model_step
from meshwise.planner.pipeline import plan_pipeline
from meshwise.planner.planned_pipeline import PlannedPipeline
from meshwise.request.pipeline_request import PipelineRequest
from meshwise.schedules.eager_one_f_one_b import EAGER
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.trace.step import StepSignature

GOLDEN = Path(__file__).parents[1] / "golden"
SIGNATURE = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")
P3 = mw.Cluster.virtual("1x p3.8xlarge")


def _spec(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _product(method: Any) -> mw.ParallelStep:
    """Two dense products; its arguments are a weight and a batch."""
    return mw.parallelize(
        lambda w, x: (w + x.T @ x, jnp.sum(x @ w)), method=method, cluster=cpu_cluster(4)
    )


def _list_of_weights() -> mw.Plan:
    step = mw.parallelize(
        lambda w, x: ([v + x.T @ x for v in w], jnp.sum(x @ w[0])),
        method=mw.DataParallel(),
        cluster=cpu_cluster(4),
    )
    return step.plan([_spec(64, 64)] * 3, _spec(256, 64))


def gpt_pipeline(**changes: Any) -> PlannedPipeline:
    """Plan three layers of a small GPT as a pipeline, with other wishes than usual if given.

    It chooses between 1F1B and eager 1F1B, which takes a third of the time of all schedules.
    """
    config = model_config("gpt-mini", num_layers=2, dtype="float16")
    step, state, batch = model_step(config, 16).abstract
    request = PipelineRequest(
        **{
            "cluster": P3,
            "num_layers": 3,
            "num_microbatches": (4,),
            "schedules": (ONE_F_ONE_B, EAGER),
            **changes,
        }
    )
    return plan_pipeline(step, (state, batch), {}, SIGNATURE, request)


PLANS: Mapping[str, Callable[[], mw.Plan]] = MappingProxyType(
    {
        "product-priced": lambda: _product(mw.IntraOp((4,))).priced(
            _spec(64, 64), _spec(256, 64), rivals=2
        ),
        "product-by-data": lambda: _product(mw.DataParallel()).plan(_spec(64, 64), _spec(256, 64)),
        "list-of-weights": _list_of_weights,
        "bad-input": bad_input.case.plan,
        "gpt-two-stages": lambda: gpt_pipeline(num_stages=2).plan,
    }
)


def golden_plan(name: str) -> mw.Plan:
    """Return the plan that stands in a file, one of `PLANS`."""
    return mw.Plan.from_json((GOLDEN / "plans" / f"{name}.json").read_text(encoding="utf-8"))
