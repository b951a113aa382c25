"""Steps with kernels of attention, compiled for GPUs and TPUs that are not here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention

import meshwise as mw
from doubles.attention_step import (
    GROUPS,
    HEADS,
    LENGTH,
    WIDTH,
    attention_step,
    by_cudnn,
    by_triton,
    shapes,
)
from meshwise.errors import TraceError
from meshwise.targets.lowered import step_program
from meshwise.trace.step import StepSignature, open_step, trace_step
from rule_cases.pallas import splash

SIGNATURE = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")
GPUS, TPUS = mw.Cluster.virtual("1x dgx-h100"), mw.Cluster.virtual("2x tpu-v5p")


def _parallel(attention: Callable[..., Any], cluster: Any) -> Any:
    method = mw.Megatron(dp=2, tp=4)
    return mw.parallelize(
        attention_step(attention), method=method, cluster=cluster, batch_argnums=(1,)
    )


def _check(found: Any) -> None:
    """The program compiles, and sends what the plan says."""
    assert found.fits
    for item in found.collectives:
        assert item.compiled_bytes == pytest.approx(item.planned_bytes, rel=0.05)


def by_splash(q: Any, k: Any, v: Any) -> Any:
    with jax.ensure_compile_time_eval():
        kernel = splash(HEADS, rows=LENGTH, interpret=False)
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q * WIDTH**-0.5, k, v))
    return jnp.swapaxes(jax.vmap(kernel)(q, k, v), 1, 2)


def by_flash(q: Any, k: Any, v: Any) -> Any:
    k, v = (jnp.repeat(x, HEADS // GROUPS, axis=2) for x in (k, v))
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
    return jnp.swapaxes(flash_attention(q, k, v, causal=True, sm_scale=WIDTH**-0.5), 1, 2)


class _PluginAlone:
    """The part of JAX's plugin for CUDA that asks libraries, where there are none."""

    def cudnn_get_version(self) -> int:
        raise RuntimeError("cuDNN not found.")


@pytest.mark.parametrize("plugin", [None, _PluginAlone()])
def test_a_step_with_cudnn_is_planned_and_lowered_without_it(
    plugin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads are split, rows of the batch are, and nothing between the kernels is sent."""
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.cuda_versions", plugin)
    step = _parallel(by_cudnn, GPUS)
    plan = step.plan(*shapes())
    assert {c.kind for c in plan.collectives} == {"all-reduce"}
    assert not [text for text in plan.warnings if "dot_product" in text]
    traced = trace_step(open_step(attention_step(by_cudnn), shapes(), {}, SIGNATURE), num_devices=8)
    module = step_program(traced, plan, "cuda").module
    for name in (b"__cudnn$fmhaSoftmax", b"__cudnn$fmhaSoftmaxBackward"):
        assert name in module


@pytest.mark.usefixtures("gpu_compiler")
@pytest.mark.parametrize("attention", [by_cudnn, by_triton])
def test_kernels_compile_for_gpus(attention: Callable[..., Any]) -> None:
    found = _parallel(attention, GPUS).verify(*shapes())
    assert found.collectives
    _check(found)


@pytest.mark.parametrize("stages", [1, 2])
def test_micro_batches_keep_the_rule_of_cudnn(stages: int) -> None:
    """It is split among devices in programs of micro-batches too."""
    plan = mw.parallelize(
        attention_step(by_cudnn),
        method=mw.Auto(stages=stages, schedule="1f1b"),
        cluster=GPUS,
        batch_argnums=(1,),
        num_microbatches=2,
    ).plan(*shapes())
    assert len(plan.stages) == stages
    # Without its rule all devices would compute all of it: more than half of the FLOP.
    assert plan.replicated.flop_share < 0.5


@pytest.mark.usefixtures("gpu_compiler")
def test_stages_with_cudnn_compile_for_gpus() -> None:
    step = mw.parallelize(
        attention_step(by_cudnn),
        method=mw.Auto(stages=2, schedule="1f1b"),
        cluster=GPUS,
        batch_argnums=(1,),
        num_microbatches=2,
    )
    assert len(step.plan(*shapes()).stages) == 2
    _check(step.verify(*shapes()))


@pytest.mark.usefixtures("tpu_compiler")
@pytest.mark.parametrize("attention", [by_splash, by_flash])
def test_kernels_compile_for_tpus(attention: Callable[..., Any]) -> None:
    found = _parallel(attention, TPUS).verify(*shapes())
    assert found.fits


def test_jax_without_cudnn_is_told_what_to_write() -> None:
    def by_jax(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, implementation="cudnn")

    with pytest.raises(TraceError, match=r"write mw\.cudnn_attention\(query, key, value"):
        _parallel(by_jax, GPUS).plan(*shapes())
