"""The warning that attention keeps its scores in memory where a kernel would not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from meshwise.graph.graph import Graph
from meshwise.jax_compat.jaxprs import FlatJaxpr
from meshwise.memory.peak import Buffer, peak
from meshwise.plan.plan import Plan
from meshwise.plan.text.columns import type_text
from meshwise.plan.text.explain_costs import busy_s
from meshwise.targets.gpus import GPUS
from meshwise.trace.attention.written_out import WrittenAttention, written_attention
from meshwise.units import bytes_text

# Smaller shares of a device's peak or of a step are not worth a change of the step.
_LEAST_SHARE = 0.1
# What cuDNN's attention takes, as JAX asks for it: devices from Ampere on, 16 bits, features of
# queries as of values, a multiple of 8 and at most so many, and even lengths where there is a
# bias or a mask beside the causal one. Source: `check_is_flash_attention` in JAX 0.10.
_MOST_FEATURES = (((9, 0), 256), ((8, 0), 128))
_TYPES = ("bfloat16", "float16")
_MULTIPLE = 8
# Scores may be scaled, biased and masked.
_FUNCTIONS = frozenset(
    "add and convert_element_type div eq ge gt le lt max min mul ne neg not or select_n sub".split()
)


def with_attention_hint(
    plan: Plan, step: Callable[[], FlatJaxpr], graph: Graph | None = None
) -> Plan:
    """Return a plan that warns, once, where attention that is written out takes much of it.

    Args:
        plan: The plan.
        step: Gives the step, or its forward pass, with calls taken apart.
        graph: The graph that was planned on one mesh; None: only times are looked at.
    """
    most = 0 if plan.joins_attention else _most_features(plan)
    text = _hint(plan, step(), graph, most) if most else ""
    return replace(plan, warnings=(*plan.warnings, text)) if text else plan


def _most_features(plan: Plan) -> int:
    """Return how many features cuDNN's attention has on all devices of a plan; 0: there is none."""
    most = {
        name: next((n for least, n in _MOST_FEATURES if gpu.compute_capability >= least), 0)
        for target in GPUS
        for gpu in (target.gpu,)
        for name in target.devices
    }
    return min(most.get(stage.mesh.device.name, 0) for stage in plan.stages)


def _hint(plan: Plan, step: FlatJaxpr, graph: Graph | None, most_features: int) -> str:
    """Return the warning; empty where there is nothing to say."""
    found = [a for a in written_attention(step) if _fits(a, most_features)]
    if not found:
        return ""
    num_bytes = 0 if graph is None else _bytes_at_peak(plan, graph, found)
    lines = {line for attention in found for line in attention.lines if line}
    seconds = math.fsum(
        item.seconds
        for stage in plan.stages
        for item in stage.others
        if item.where.partition(" at ")[2] in lines
    )
    shares = num_bytes / plan.peak_bytes, seconds / busy_s(plan)
    if max(shares) <= _LEAST_SHARE:
        return ""
    told: list[str] = []
    if shares[0] > _LEAST_SHARE:
        peak = bytes_text(plan.peak_bytes)
        told.append(f"they fill {bytes_text(num_bytes)} of {peak} on a device at the peak")
    if shares[1] > _LEAST_SHARE:
        told.append(f"softmax and mask take {shares[1]:.0%} of the work of a step")
    largest = max(found, key=lambda attention: attention.num_bytes)
    wrong = sorted({a.query_dtype for a in found} - {*_TYPES})
    needs = f"; it needs {' or '.join(_TYPES)}, and queries are {', '.join(wrong)}" if wrong else ""
    return (
        f"attention at {largest.where} keeps its scores in memory, "
        f"{type_text(largest.dtype, largest.shape)} with {bytes_text(largest.num_bytes)} in the "
        f"whole batch: {', and '.join(told)}; "
        'jax.nn.dot_product_attention(..., implementation="cudnn") keeps none, and '
        f"mw.cudnn_attention is the same where the machine that plans has no GPU{needs}"
    )


def _bytes_at_peak(plan: Plan, graph: Graph, found: Sequence[WrittenAttention]) -> int:
    """Return the bytes of one device at its peak that are of the shape of scores."""

    def is_like_scores(buffer: Buffer) -> bool:
        here = graph
        for time, body in zip(buffer.path[::2], buffer.path[1::2], strict=True):
            here = here.operators[time].bodies[body]
        shape = here.tensors[buffer.tensor].shape
        return any(
            attention.num_elements in (math.prod(shape), math.prod(shape) * plan.num_microbatches)
            and not Counter(attention.rows_and_keys) - Counter(shape)
            for attention in found
        )

    at_peak = peak(graph, plan.decision, plan.mesh).buffers
    return sum(b.num_bytes for b in at_peak if b.role != "input" and is_like_scores(b))


def _fits(attention: WrittenAttention, most_features: int) -> bool:
    """Return whether cuDNN has such attention, types apart."""
    features, of_values = attention.features
    is_even = not any(size % 2 for size in attention.rows_and_keys)
    return (
        attention.has_batch
        and features == of_values
        and features <= most_features
        and features % _MULTIPLE == 0
        and (is_even or not attention.has_others)
        and attention.functions <= _FUNCTIONS
    )
