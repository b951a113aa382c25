"""Values of other layers that change their layout: what the plan says of them is what compiles."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import meshwise as mw
from doubles.few import few
from meshwise.cluster.cpu import cpu_cluster
from meshwise.inter.search import finishing
from meshwise.inter.search.unsearched_memory import UnsearchedMemoryError
from meshwise.plan.plan import Plan
from meshwise.plan.stage import Stage, mesh_peaks
from meshwise.schedules.schedule import Schedule
from oracle.tolerances import MEMORY_ABOVE, MEMORY_BELOW

pytestmark = pytest.mark.usefixtures("quick_steps")

WIDTH = 64


def loss(weights: Any, rows: Any) -> Any:
    """Layers that read the rows and the first layers again, in ways that suit other layouts."""
    first = jnp.tanh(rows @ weights[0]) + jnp.concatenate([rows[:, ::2], rows[:, 1::2]], axis=1)
    second = jnp.tanh(first @ weights[1]) + rows
    third = jnp.tanh(second @ weights[2]) + rows @ (weights[2] @ weights[1])
    fourth = jnp.tanh(third @ weights[3]) + second
    return jnp.mean((jnp.tanh(fourth @ weights[4]) * jnp.tanh(first) - rows) ** 2)


def read_twice(weights: Any, rows: Any) -> Any:
    """A first layer whose cotangent comes in two terms, which only its gradients read."""
    first = jax.nn.relu((jax.nn.relu(rows @ weights[0]) + rows) @ weights[1])
    second = jax.nn.relu(first @ weights[2]) @ weights[3]
    return jnp.mean((second + rows * first - rows) ** 2)


def step_of(loss: Any) -> Any:
    def step(weights: Any, rows: Any) -> Any:
        value, grads = mw.value_and_grad(loss)(weights, rows)
        return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)], value

    return step


ARGUMENTS = (
    [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * 5,
    jax.ShapeDtypeStruct((4096, WIDTH), jnp.float32),
)


def parallel(
    schedule: str, memory_bytes: int | None = None, stages: int = 2, loss: Any = loss
) -> Any:
    return mw.parallelize(
        step_of(loss),
        method=mw.Auto(stages=stages, schedule=schedule),
        num_microbatches=4,
        cluster=cpu_cluster(4),
        batch_argnums=(1,),
        memory_bytes=memory_bytes,
    )


def changes(plan: Plan) -> int:
    return sum(item.count for item in plan.collectives if item.where == "value of another layer")


WAYS: list[dict[str, Any]] = [
    {"schedule": "1f1b"},
    {"schedule": "zero-bubble-h1"},
    {"schedule": "interleaved-1f1b", "stages": 4},
]


@pytest.mark.parametrize("way", few(WAYS, WAYS[:1]))
def test_they_send_and_hold_what_the_plan_says(way: dict[str, Any]) -> None:
    made = parallel(**way)
    assert changes(made.plan(*ARGUMENTS))
    for stage in made.fidelity(*ARGUMENTS):
        assert stage.planned_bytes == stage.compiled_bytes
        ratio = stage.predicted_peak_bytes / stage.compiled_peak_bytes
        assert 1 - MEMORY_BELOW <= ratio <= 1 + MEMORY_ABOVE


def test_a_cotangent_that_only_gradients_of_weights_read_is_counted() -> None:
    shapes = [(WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)]
    weights = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    for stage in parallel("zero-bubble-h1", loss=read_twice).fidelity(weights, ARGUMENTS[1]):
        ratio = stage.predicted_peak_bytes / stage.compiled_peak_bytes
        assert 1 - MEMORY_BELOW <= ratio <= 1 + MEMORY_ABOVE


def test_where_there_is_no_room_for_them_the_search_leaves_some() -> None:
    free = parallel("1f1b").plan(*ARGUMENTS)
    limit = int(0.96 * max(free.mesh_peak_bytes))
    tight = parallel("1f1b", limit).plan(*ARGUMENTS)
    assert max(tight.mesh_peak_bytes) <= limit
    assert "of the memory left free" in tight.space
    assert tight.step_time_s >= free.step_time_s


def test_a_candidate_without_room_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    free = parallel("interleaved-1f1b", stages=4).plan(*ARGUMENTS)
    most = max(free.mesh_peak_bytes)

    def refused(
        stages: Sequence[Stage],
        table: Schedule,
        changing: Collection[int],
        least_s: float,
        spare_share: float,
    ) -> None:
        held, used = [s.held_bytes for s in stages], [s.temporary_bytes for s in stages]
        if max(mesh_peaks(table.mesh_of_stage, held, used)) >= most:
            raise UnsearchedMemoryError("no room", 0.03, least_s, spare_share)

    monkeypatch.setattr(finishing, "check_room", refused)
    other = parallel("interleaved-1f1b", most, stages=4).plan(*ARGUMENTS)
    assert max(other.mesh_peak_bytes) < most
