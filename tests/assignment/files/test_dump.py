"""Problems of the planner as files."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import meshwise as mw
from assignment.problems import parse_instance, random_instance
from assignment.test_encoding import random_problem
from meshwise.assignment.encoding import encode
from meshwise.assignment.files.dump import dump_problem
from meshwise.assignment.files.reader import read_instance
from meshwise.assignment.files.writer import write_instance
from meshwise.assignment.instance import is_solution
from meshwise.assignment.instance_solver import solve_instance
from meshwise.errors import SolverError, TraceError


def loss(params: dict[str, jax.Array], batch: jax.Array) -> jax.Array:
    return jnp.mean(jnp.tanh(batch @ params["w"]) @ params["v"])


def step(params: dict[str, jax.Array], batch: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
    value, grads = mw.value_and_grad(loss)(params, batch)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def arguments() -> tuple[dict[str, jax.ShapeDtypeStruct], jax.ShapeDtypeStruct]:
    params = {"w": jax.ShapeDtypeStruct((64, 32), "float32")}
    params["v"] = jax.ShapeDtypeStruct((32, 16), "float32")
    return params, jax.ShapeDtypeStruct((16, 64), "float32")


@pytest.mark.usefixtures("compiled_kernels")
def test_every_ilp_of_a_plan_is_kept_and_has_the_planners_cost(tmp_path: Path) -> None:
    folder = tmp_path / "ilp"
    cluster = mw.Cluster.virtual("1x p3.16xlarge")
    parallel = mw.parallelize(
        step, method=mw.IntraOp(mesh_shape=(2, 4)), cluster=cluster, dump_ilp=folder
    )
    plan = parallel.plan(*arguments())
    (first, *_) = sorted(folder.iterdir())
    assert first.name == "001-intra-2x4.json.gz"
    instance = read_instance(first)
    answer = solve_instance(instance, time_limit_s=300)
    assert answer.status == "optimal"
    assert answer.choice is not None
    assert is_solution(instance, answer.choice)
    notes = _notes(first)
    assert answer.cost is not None
    cost_s = answer.cost * notes["cost_unit_s"] + notes["cost_constant_s"]
    assert cost_s == pytest.approx(plan.step_time_s, rel=1e-6)


def _notes(path: Path) -> dict[str, float]:
    return json.loads(gzip.decompress(path.read_bytes()))["problem"]


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
@pytest.mark.parametrize("seed", range(5))
def test_what_is_written_is_read_back(tmp_path: Path, seed: int, name: str) -> None:
    instance = random_instance(seed, tight=None if seed == 0 else 0.4)
    write_instance(instance, tmp_path / name, unit=0.5)
    again = read_instance(tmp_path / name)
    assert again.name == instance.name
    assert again.limit == instance.limit
    for part in ("first_choice", "costs", "usages", "intervals", "edges", "edge_costs"):
        assert getattr(again, part).tolist() == getattr(instance, part).tolist()


def test_files_are_numbered_and_never_overwritten(tmp_path: Path) -> None:
    problem = random_problem(3)
    names = [dump_problem(problem, None, tmp_path, what).name for what in ("a", "b", "a")]
    assert names == ["001-a.json.gz", "002-b.json.gz", "003-a.json.gz"]
    found = read_instance(tmp_path / names[0])
    assert found.costs.tolist() == encode(problem).instance.costs.tolist()


def test_an_empty_problem_is_written_and_read(tmp_path: Path) -> None:
    empty = {"nodes": {"intervals": [], "costs": [], "usages": []}}
    empty["edges"] = {"nodes": [], "costs": []}
    instance = parse_instance({"problem": empty}, "x")
    write_instance(instance, tmp_path / "x.json")
    assert read_instance(tmp_path / "x.json").num_nodes == 0


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="dump_ilp must be a folder, and '.*file' is a file"):
        mw.parallelize(step, dump_ilp=tmp_path / "file")
    with pytest.raises(TraceError, match="dump_ilp must be the path of a folder, got 3"):
        mw.parallelize(step, dump_ilp=3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TraceError, match="dump_ilp: '.*below' cannot be written to: Not a dir"):
        mw.parallelize(step, dump_ilp=tmp_path / "file" / "below")
    # Tests may run as a user who may write everywhere, but not here.
    with pytest.raises(TraceError, match="dump_ilp: '/proc/self' cannot be written to"):
        mw.parallelize(step, dump_ilp="/proc/self")
    with pytest.raises(SolverError, match="cannot be written to: Not a directory"):
        dump_problem(random_problem(1), None, tmp_path / "file" / "below", "a")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(SolverError, match=f"{name}: cannot be written to: File exists"):
            dump_problem(random_problem(1), None, tmp_path / name, "a")


def test_methods_that_solve_nothing_leave_an_empty_folder(tmp_path: Path) -> None:
    cluster = mw.Cluster.virtual("1x p3.16xlarge")
    first = mw.parallelize(step, method=mw.IntraOp(mesh_shape=(2, 4)), cluster=cluster)
    plan = first.plan(*arguments())
    folder = tmp_path / "a"
    again = mw.parallelize(step, method=mw.Replay(plan), cluster=cluster, dump_ilp=folder)
    assert again.plan(*arguments()).step_time_s == pytest.approx(plan.step_time_s)
    assert list(folder.iterdir()) == []


def evaluated(params: dict[str, jax.Array], batch: jax.Array) -> jax.Array:
    return loss(params, batch)


@pytest.mark.usefixtures("compiled_kernels")
def test_a_step_that_follows_another_keeps_its_problem(tmp_path: Path) -> None:
    """What the other step fixes is forbidden here, and the rest is a problem like any other."""
    cluster = mw.Cluster.virtual("1x p3.16xlarge")
    first = mw.parallelize(step, method=mw.IntraOp(mesh_shape=(2, 4)), cluster=cluster)
    first.plan(*arguments())
    second = mw.parallelize(evaluated, method=mw.Follow(first), cluster=cluster, dump_ilp=tmp_path)
    plan = second.plan(*arguments())
    files = sorted(tmp_path.iterdir())
    assert files
    answer = solve_instance(read_instance(files[0]), time_limit_s=300)
    assert answer.status == "optimal"
    assert answer.cost is not None
    notes = _notes(files[0])
    cost_s = answer.cost * notes["cost_unit_s"] + notes["cost_constant_s"]
    assert cost_s == pytest.approx(plan.step_time_s, rel=1e-6)


def test_many_may_write_into_one_folder_at_once(tmp_path: Path) -> None:
    problem = random_problem(3)
    with ThreadPoolExecutor(4) as pool:
        names = list(pool.map(lambda k: dump_problem(problem, None, tmp_path, k).name, "abcd" * 5))
    assert len(set(names)) == 20
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    for name in names:
        assert read_instance(tmp_path / name).num_nodes
