"""Options of `parallelize` and of the methods: each mistake has its message."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

import meshwise as mw
from meshwise.cluster.cpu import cpu_cluster
from meshwise.errors import ClusterError, MeshwiseError, PinError, PlanError, TraceError

CLUSTER = cpu_cluster(2)
X = jnp.arange(8.0).reshape(4, 2)
STATE = {"w": jnp.ones((2, 2))}
parallelize = partial(mw.parallelize, method=mw.DataParallel(), cluster=CLUSTER)


def step(state: Any, batch: Any) -> Any:
    return {"w": state["w"] + (batch.T @ batch)}, jnp.mean(batch @ state["w"])


def message(error: pytest.ExceptionInfo[Any]) -> str:
    return str(error.value)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"microbatch_statistics": "loacl"},
            TraceError,
            "microbatch_statistics must be 'exact' or 'local', got 'loacl'",
        ),
        (
            {"num_microbatches": "many"},
            TraceError,
            "num_microbatches must be a whole number of at least 1, or 'auto', got 'many'",
        ),
        (
            {"num_microbatches": 2.0},
            TraceError,
            "num_microbatches must be a whole number of at least 1, or 'auto', got 2.0",
        ),
        (
            {"num_microbatches": True},
            TraceError,
            "num_microbatches must be a whole number of at least 1, or 'auto', got True",
        ),
        (
            {"num_microbatches": 0},
            TraceError,
            "num_microbatches must be a whole number of at least 1, or 'auto', got 0",
        ),
        (
            {"donate_argnums": "all"},
            TraceError,
            "donate_argnums must be the number of an argument or a tuple of such numbers, or "
            "'auto', got 'all'",
        ),
        (
            {"donate_argnums": True},
            TraceError,
            "donate_argnums must be the number of an argument or a tuple of such numbers, or "
            "'auto', got True",
        ),
        (
            {"batch_argnums": "batch"},
            TraceError,
            "batch_argnums must be the number of an argument or a tuple of such numbers, got "
            "'batch'",
        ),
        (
            {"static_argnums": (0.5,)},
            TraceError,
            "static_argnums must be the number of an argument or a tuple of such numbers, got "
            "(0.5,)",
        ),
        (
            {"memory_bytes": "16GB"},
            TraceError,
            "memory_bytes must be a positive number, the bytes that one device may use, as "
            "16 * 2**30, got '16GB'",
        ),
        (
            {"pins": ["0/w"]},
            PinError,
            "pins must map patterns of argument paths to PartitionSpecs, as "
            "{'0/params/**/kernel': P('x', None)}, got ['0/w']",
        ),
        ({"method": mw.Zero3}, PlanError, "method is the class Zero3; pass method=mw.Zero3()"),
        (
            {"method": mw.Megatron},
            PlanError,
            "method is the class Megatron; pass method=mw.Megatron(dp=..., tp=...)",
        ),
        ({"method": "zero3"}, PlanError, "method is the string 'zero3'; pass method=mw.Zero3()"),
        (
            {"method": "Data-Parallel"},
            PlanError,
            "method is the string 'Data-Parallel'; pass method=mw.DataParallel()",
        ),
        (
            {"method": "fastest"},
            PlanError,
            "method is 'fastest' (str); the methods are mw.IntraOp(), mw.Auto(), "
            "mw.DataParallel(), mw.Zero2(), mw.Zero3(), mw.Megatron(dp=..., tp=...), "
            "mw.Heuristic(), mw.Replay(plan), mw.Follow(step)",
        ),
        (
            {"method": int},
            PlanError,
            "method is the class int; the methods are mw.IntraOp(), mw.Auto(), "
            "mw.DataParallel(), mw.Zero2(), mw.Zero3(), mw.Megatron(dp=..., tp=...), "
            "mw.Heuristic(), mw.Replay(plan), mw.Follow(step)",
        ),
        (
            {"cluster": "8x p3.16xlarge"},
            ClusterError,
            "cluster is the string '8x p3.16xlarge'; pass "
            "cluster=mw.Cluster.virtual('8x p3.16xlarge')",
        ),
        (
            {"cluster": Path("our.toml")},
            ClusterError,
            "cluster is the path 'our.toml'; pass cluster=mw.Cluster.from_file('our.toml')",
        ),
        (
            {"cluster": 8},
            ClusterError,
            "cluster is 8; pass a mw.Cluster, as mw.Cluster.virtual('8x p3.16xlarge'), or None "
            "for the devices of this process, or of all processes of its job",
        ),
        (
            {"cluster": mw.Cluster},
            ClusterError,
            "cluster is the class Cluster; pass a mw.Cluster, as "
            "mw.Cluster.virtual('8x p3.16xlarge'), or None for the devices of this process, "
            "or of all processes of its job",
        ),
    ],
)
def test_wrong_options_are_refused_when_the_step_is_made(
    options: dict[str, Any], error: type[MeshwiseError], text: str
) -> None:
    with pytest.raises(error) as caught:
        mw.parallelize(step, **options)
    assert message(caught) == text


def test_a_plan_is_not_a_method() -> None:
    plan = parallelize(step).plan(STATE, X)
    with pytest.raises(PlanError) as caught:
        mw.parallelize(step, method=plan)
    assert message(caught) == "method is a Plan; to run it again pass method=mw.Replay(plan)"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: mw.Replay("x"),  # type: ignore[arg-type]
            "Replay takes a Plan, got the string 'x'; read the plan's JSON with "
            "mw.Plan.from_json(text)",
        ),
        (
            lambda: mw.Replay(None),  # type: ignore[arg-type]
            "Replay takes a Plan, got None (NoneType); pass what step.plan(...) or "
            "mw.Plan.from_json(text) returned",
        ),
        (
            lambda: mw.IntraOp(mesh_shape=(2, 0)),
            "IntraOp(mesh_shape=(2, 0)): the shape of a mesh is a tuple of sizes of at least 1, "
            "as (2, 4), or None for every view",
        ),
        (
            lambda: mw.Heuristic(mesh_shape=8),  # type: ignore[arg-type]
            "Heuristic(mesh_shape=8): the shape of a mesh is a tuple of sizes of at least 1, as "
            "(2, 4), or None for every view",
        ),
        (
            lambda: mw.IntraOp(objective="speed"),  # type: ignore[arg-type]
            "IntraOp(objective='speed'): the objectives are 'time' and 'alpa'",
        ),
        (
            lambda: mw.Auto(time_limit_s=0),
            "Auto(time_limit_s=0): the limit must be a positive number",
        ),
        (
            lambda: mw.Auto(transfers="once"),
            "Auto(transfers='once'): tensors pass between hosts by 'send/recv', 'local all-gather',"
            " 'global all-gather', 'broadcast'",
        ),
        (
            lambda: mw.Auto(seed=1.5),  # type: ignore[arg-type]
            "Auto(seed=1.5): the seed must be a whole number from 0",
        ),
        (
            lambda: mw.Megatron(dp=2, tp=0),
            "Megatron(tp=0): tp must be a whole number of at least 1",
        ),
        (
            lambda: mw.Megatron(dp="2", tp=1),  # type: ignore[arg-type]
            "Megatron(dp='2'): dp must be a whole number of at least 1",
        ),
    ],
)
def test_methods_check_their_fields(make: Any, text: str) -> None:
    with pytest.raises(PlanError) as caught:
        make()
    assert message(caught) == text


def test_the_shape_of_a_mesh_may_be_a_list() -> None:
    assert mw.IntraOp(mesh_shape=[2, 4]) == mw.IntraOp(mesh_shape=(2, 4))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("memory", 2, "did you mean memory_bytes?"),
        ("microbatches", 2, "did you mean num_microbatches?"),
        ("stages", 2, "it goes to the method, as method=mw.Auto(stages=2)"),
        ("mesh_shape", (2, 4), "it goes to the method, as method=mw.IntraOp(mesh_shape=(2, 4))"),
        ("mesh_shape", {}, "it goes to the method, as method=mw.IntraOp(mesh_shape=...)"),
        ("tp", 2, "it goes to the method, as method=mw.Megatron(tp=2)"),
        (
            "mesh",
            (2, 4),
            "the shape of a mesh goes to the method, as method=mw.IntraOp(mesh_shape=(2, 4))",
        ),
        (
            "mesh",
            AbstractMesh((2, 4), ("data", "model")),
            "the shape of a mesh goes to the method, as method=mw.IntraOp(mesh_shape=(2, 4))",
        ),
        (
            "mesh",
            "2x4",
            "the shape of a mesh goes to the method, as method=mw.IntraOp(mesh_shape=(2, 4))",
        ),
        ("zzz", 2, "it has cluster, method, num_microbatches, "),
    ],
)
def test_options_that_there_are_not(name: str, value: Any, meant: str) -> None:
    options: dict[str, Any] = {name: value}
    for make in (mw.parallelize, mw.nnx.parallelize):
        with pytest.raises(TypeError) as caught:
            make(step, **options)
        assert isinstance(caught.value, TraceError)
        assert str(caught.value).startswith(f"parallelize has no option {name!r}; {meant}")


def test_options_in_place_of_the_step_are_refused() -> None:
    with pytest.raises(TraceError) as caught:
        mw.parallelize(mw.Zero3())  # type: ignore[arg-type]
    assert message(caught) == (
        "parallelize takes the step, a function, got Zero3(); options go by keyword, as "
        "parallelize(step, method=mw.Zero3(), cluster=...)"
    )
    with pytest.raises(TraceError) as caught:
        mw.parallelize(mw.parallelize(step))
    assert message(caught) == (
        "step is made by parallelize already; parallelize the function itself"
    )
