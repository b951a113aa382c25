"""Plans as XLA:GPU compiles them for devices that are not here."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import optax
import pytest

import meshwise as mw
from meshwise.errors import ClusterError, ProgramError

CLUSTER = mw.Cluster.virtual("1x dgx-h100")
WIDTH, ROWS = 64, 32
TX = optax.adam(1e-3)
SPEC = jax.ShapeDtypeStruct


def train_step(state, batch):
    params, opt = state

    def loss_fn(p):
        hidden = jnp.tanh(batch["x"] @ p["up"])
        return jnp.mean((hidden @ p["down"] - batch["y"]) ** 2)

    loss, grads = mw.value_and_grad(loss_fn)(params)
    updates, opt = TX.update(grads, opt, params)
    return (optax.apply_updates(params, updates), opt), loss


def arguments():
    params = {
        "up": SPEC((WIDTH, 4 * WIDTH), "float32"),
        "down": SPEC((4 * WIDTH, WIDTH), "float32"),
    }
    rows = SPEC((ROWS, WIDTH), "float32")
    return (params, jax.eval_shape(TX.init, params)), {"x": rows, "y": rows}


@pytest.mark.usefixtures("gpu_compiler")
def test_the_compiler_says_what_a_plan_needs_and_sends() -> None:
    step = mw.parallelize(train_step, method=mw.Zero3(), cluster=CLUSTER)
    told: list[str] = []
    found = step.verify(*arguments(), listener=lambda name, _: told.append(name))
    plan = step.plan(*arguments())
    assert told == ["the step"]
    assert found.target == "h100"
    assert found.fits
    assert found.predicted_bytes == plan.peak_bytes
    # State and rows of one device at least.
    (program,) = found.programs
    state_bytes = 3 * 2 * 4 * WIDTH * WIDTH * 4 // 8
    assert program.argument_bytes >= state_bytes
    assert program.alias_bytes >= state_bytes
    for item in found.collectives:
        assert item.compiled_bytes == pytest.approx(item.planned_bytes, rel=0.05)
        assert item.compiled_number <= item.planned_number
    assert json.loads(found.to_json())["fits"]
    assert "fits. The fullest device needs" in found.explain()
    # From disk the second time: no process is started.
    again = step.verify(*arguments())
    assert again == found


@pytest.mark.usefixtures("gpu_compiler")
def test_a_pipeline_is_verified_program_by_program() -> None:
    step = mw.parallelize(train_step, method=mw.Auto(stages=2), cluster=CLUSTER, num_microbatches=2)
    found = step.verify(*arguments())
    assert [stage.stage for stage in found.stages] == [0, 1]
    assert {"forward of layer 0", "backward of layer 0"} <= {p.name for p in found.programs}
    passes = [p for p in found.programs if p.name.startswith("forward")]
    assert all(p.count % 2 == 0 for p in passes)


@pytest.mark.usefixtures("gpu_compiler")
def test_what_a_compiler_refuses_is_named() -> None:
    step = mw.parallelize(train_step, method=mw.DataParallel(), cluster=CLUSTER)
    with pytest.raises(ProgramError, match="does not compile the step for v100"):
        step.verify(*arguments(), target="v100")


def test_an_unknown_target_is_refused() -> None:
    step = mw.parallelize(train_step, method=mw.DataParallel(), cluster=CLUSTER)
    with pytest.raises(ClusterError, match="no target 'h1'"):
        step.verify(*arguments(), target="h1")
