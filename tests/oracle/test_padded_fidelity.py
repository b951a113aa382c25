"""What a plan says of a padded step is what XLA compiles: collectives, FLOP, memory (I2)."""

from __future__ import annotations

import random
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from benchmarks.fidelity import compare, compiled_collective_bytes, planned_collective_bytes
from benchmarks.fidelity_cases import Case, GptCase

import meshwise as mw
from doubles.random_decision import random_decision
from meshwise.cluster.spec import ClusterSpec
from meshwise.models.gpt import GptConfig
from meshwise.models.losses import mean_cross_entropy
from meshwise.plan.counts.collectives import collectives
from meshwise.planner import one_mesh
from meshwise.runtime.compile import compile_decided
from meshwise.runtime.hlo.collectives import hlo_collectives
from meshwise.spmd.program import concrete_mesh
from meshwise.trace.padding.choose import padded_dims, with_padding
from meshwise.trace.step import StepSignature, TracedStep, open_step, trace_step
from oracle.tolerances import MEMORY_BELOW, PADDED_MEMORY_ABOVE

pytestmark = pytest.mark.usefixtures("quick_compile")

CLUSTER = ClusterSpec.virtual("1x p3.16xlarge")


def padded_step(vocab: int, hidden: int, rows: int, num_microbatches: int) -> TracedStep:
    """A tied head with momentum, its vocabulary padded."""

    def loss(params: Any, batch: Any) -> Any:
        x = jnp.tanh(params["table"][batch["x"]] @ params["up"])
        return mean_cross_entropy(x @ params["table"].T + params["bias"], batch["y"])

    def step(state: Any, batch: Any) -> Any:
        params, momentum = state
        value, grads = mw.value_and_grad(loss)(params, batch)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        return (jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum), value

    shapes = {"table": (vocab, hidden), "up": (hidden, hidden), "bias": (vocab,)}
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    tokens = jax.ShapeDtypeStruct((rows, 8), jnp.int32)
    signature = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")
    opened = open_step(step, ((params, params), {"x": tokens, "y": tokens}), {}, signature)
    step_ = trace_step(opened, num_microbatches=num_microbatches, num_devices=8)
    dims = padded_dims(step_, 8)
    assert [dim.size for dim in dims] == [vocab]
    return with_padding(step_, dims)


def compiled(step: TracedStep, decision: Any, logical: Any) -> Any:
    mesh = concrete_mesh(logical, jax.devices()[:8])
    return compile_decided(step, decision, logical, mesh)


def check_collectives(step: TracedStep, decision: Any, logical: Any, text: str) -> None:
    planned = collectives(step.graph, decision, logical)
    assert planned, "nothing to compare"
    assert planned_collective_bytes(
        planned, logical.names, logical.sizes
    ) == compiled_collective_bytes(hlo_collectives(text, logical.sizes))


@pytest.mark.parametrize("num_microbatches", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_plan_of_a_padded_gpt_is_what_is_compiled(
    num_microbatches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidates, pad = one_mesh._candidates, one_mesh.with_padding
    padded: list[TracedStep] = []

    def kept(step: TracedStep, dims: Any) -> TracedStep:
        padded.append(pad(step, dims))
        return padded[-1]

    def padded_only(step: TracedStep, **asked: Any) -> Any:
        return candidates(step, **asked) if step in padded else []

    monkeypatch.setattr(one_mesh, "with_padding", kept)
    monkeypatch.setattr(one_mesh, "_candidates", padded_only)
    config = GptConfig(vocab_size=1021, seq_len=64, hidden=64, num_layers=1, num_heads=8)
    model = GptCase(config=config, batch=16, masked=False)
    found = compare(
        Case(
            model=model,
            optimizer="adam",
            num_microbatches=num_microbatches,
            method=mw.IntraOp((2, 4)),
        )
    )
    assert padded, "nothing was padded"
    assert found.wrong_collectives == {}
    assert found.flop_ratio == pytest.approx(1, abs=0.01)
    assert 1 - MEMORY_BELOW <= found.memory_ratio <= 1 + PADDED_MEMORY_ABOVE


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(8,), (2, 4), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("num_microbatches", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_collectives_of_a_random_decision(
    sizes: tuple[int, ...], num_microbatches: int, seed: int
) -> None:
    step, logical = padded_step(53, 16, 16, num_microbatches), CLUSTER.mesh(sizes)
    decision = random_decision(step.graph, logical, random.Random(seed))
    text = compiled(step, decision, logical).as_text()
    check_collectives(step, decision, logical, text)
