r"""Costs by compilers of targets: whole programs beside what is predicted, and layers of MaxText.

Compute only: collectives are left out of both.  The compiler must be installed
(`pip install "meshwise[target-tpu]"`); no device is needed.  XLA:GPU writes costs only if told.

    meshwise calibrate --target v5e --out v5e.json
    python -m benchmarks.target_costs --profile v5e.json --programs gpt bert
    python -m benchmarks.target_costs --profile v5e.json --layers 16B 32B 64B
    XLA_FLAGS=--xla_gpu_collect_cost_model_stats=true \
        python -m benchmarks.target_costs --target h100 --profile h100.json --programs gpt
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import meshwise as mw
from meshwise.calibrate.target import program_seconds
from meshwise.cluster.mesh import DeviceSpec
from meshwise.cluster.spec import ClusterSpec
from meshwise.plan.counts.collectives import collective_sums
from meshwise.targets.catalog import compile_target
from meshwise.targets.compiler import compile_programs
from meshwise.targets.lowered import target_program
from meshwise.units import TERA

CLUSTERS = MappingProxyType({"v5e": "1x tpu-v5e", "h100": "1x dgx-h100"})
TPU = "v5e"
BATCH = 32
# Names, models with what is changed of them, and methods.
PROGRAMS: Mapping[str, tuple[str, Mapping[str, int], mw.Method]] = MappingProxyType(
    {
        "gpt": ("gpt-350m", {"num_layers": 2}, mw.DataParallel()),
        "bert": ("bert-large", {"num_layers": 2}, mw.Megatron(2, 4)),
        "resnet": (
            "wide-resnet-tiny",
            {"base_channels": 160, "image_size": 224, "num_classes": 1024},
            mw.DataParallel(),
        ),
    }
)


class Decoder(NamedTuple):
    """A configuration of MaxText for v5e-256, and what its page says is reached.

    Attributes:
        hidden: Width of the stream.
        ffn: Width inside the gated MLP.
        heads: Heads of 128, as many for keys and values.
        layers: Layers.
        rows: Sequences of 2,048 tokens on a chip.
        tflop_per_s: Published TFLOP/s of a chip on one v5e-256.
    """

    hidden: int
    ffn: int
    heads: int
    layers: int
    rows: int
    tflop_per_s: float


# Source: AI-Hypercomputer/maxtext, MaxText/configs/v5e: README.md (TFLOP/s) and 16b.sh, 32b.sh,
# 64b.sh (rows, remat_policy=full); configs/base.yml (2048, 7168, 16 heads, 16 layers) times the
# powers of two of `get_individual_scales` in pyconfig.py.
DECODERS: Mapping[str, Decoder] = MappingProxyType(
    {
        "16B": Decoder(4096, 28672, 64, 32, 6, 120.0),
        "32B": Decoder(8192, 28672, 64, 32, 4, 132.0),
        "64B": Decoder(8192, 28672, 64, 64, 2, 118.0),
    }
)
SEQ, HEAD, VOCABULARY = 2048, 128, 32000


def compute_s(plan: mw.Plan) -> float:
    """Predicted seconds of a step on one mesh without its collectives."""
    sums = collective_sums(plan.collectives, [stage.mesh for stage in plan.stages])
    return plan.step_time_s - math.fsum(seconds for _, _, seconds in sums.values())


def program_row(name: str, target_name: str, profile: Path) -> str:
    """Seconds of a whole program: the compiler's, and predicted without and with the profile."""
    from meshwise.models.named import model_config
    from meshwise.models.steps import model_step

    model, changes, method = PROGRAMS[name]
    config = model_config(model, dtype="bfloat16", **changes)
    step, *args = model_step(config, BATCH).abstract
    statistics: Any = "local" if name == "resnet" else "exact"

    def planned(cluster: ClusterSpec) -> Any:
        return mw.parallelize(
            step, method=method, cluster=cluster, microbatch_statistics=statistics
        )

    found: list[float] = []
    target = compile_target(target_name)
    described = ClusterSpec.virtual(CLUSTERS[target_name])
    planned(described).verify(
        *args,
        target=target_name,
        listener=lambda _, answer: found.append(program_seconds(target, answer)),
    )
    compiled = sum(found)
    clusters = described, ClusterSpec.named(str(profile))
    before, after = (compute_s(planned(c).plan(*args)) for c in clusters)
    cells = (
        f"{model} ({', '.join(f'{k} {v}' for k, v in changes.items())}), {method}",
        f"{1e3 * compiled:.1f} ms",
        f"{1e3 * before:.1f} ms ({before / compiled:.2f})",
        f"{1e3 * after:.1f} ms ({after / compiled:.2f})",
    )
    return f"| {' | '.join(cells)} |"


def _norm(x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True))).astype(x.dtype)


def layer(params: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
    """A decoder layer without scores and their use, which a fused kernel computes."""
    normed = _norm(x)
    heads = sum(jnp.einsum("bse,ehd->bshd", normed, params[name]) for name in ("q", "k", "v"))
    x = x + jnp.einsum("bshd,hde->bse", heads, params["out"])
    normed = _norm(x)
    inner = jax.nn.silu(normed @ params["gate"]) * (normed @ params["up"])
    return x + inner @ params["down"]


def layer_seconds(c: Decoder) -> float:
    """Seconds of a layer by the compiler: forward, and backward with the forward again."""
    target = compile_target(TPU)
    spec = jax.ShapeDtypeStruct
    shapes = {
        **dict.fromkeys(("q", "k", "v"), (c.hidden, c.heads, HEAD)),
        **dict.fromkeys(("gate", "up"), (c.hidden, c.ffn)),
        "out": (c.heads, HEAD, c.hidden),
        "down": (c.ffn, c.hidden),
    }
    params = {name: spec(shape, "bfloat16") for name, shape in shapes.items()}
    x = spec((c.rows, SEQ, c.hidden), "bfloat16")

    def backward(params: Any, x: Any, cotangent: Any) -> Any:
        return jax.vjp(layer, params, x)[1](cotangent)

    def program(name: str, function: Callable[..., Any], *specs: Any) -> Any:
        lowered = jax.jit(function).trace(*specs).lower(lowering_platforms=(target.platform,))
        return target_program(name, lowered, 1, target.platform)

    programs = [program("forward", layer, params, x), program("backward", backward, params, x, x)]
    return sum(program_seconds(target, answer) for answer in compile_programs(target, programs))


def decoder_row(name: str, device: DeviceSpec) -> str:
    """A step of MaxText on one v5e-256: published, and predicted without collectives.

    By the compiler's cycles of a layer; by the rate of products of the profile; by that of the
    catalog.
    """
    c = DECODERS[name]
    tokens = c.rows * SEQ
    kernels = 4 * c.hidden * c.heads * HEAD + 3 * c.hidden * c.ffn
    # Scores and mixing below the diagonal, as MaxText counts them.
    attention = 2 * tokens * SEQ * c.heads * HEAD
    head = 2 * tokens * c.hidden * VOCABULARY
    flop = 3 * (c.layers * (2 * tokens * kernels + attention) + head)
    published = flop / (c.tflop_per_s * TERA)
    # Forward twice, and a backward pass that computes the scores again.
    others = c.layers * (2 + 2.5) * attention + 3 * head
    products = c.layers * 4 * 2 * tokens * kernels + others
    described = ClusterSpec.virtual(CLUSTERS[TPU]).device
    seconds = (
        c.layers * layer_seconds(c) + others / device.rate("bfloat16"),
        products / device.rate("bfloat16"),
        products / described.rate("bfloat16"),
    )
    cells = (
        *(name, f"{flop / TERA:.0f} TFLOP", f"{c.tflop_per_s:.0f} TFLOP/s, {published:.2f} s"),
        *(f"{found:.2f} s ({found / published - 1:+.0%})" for found in seconds),
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print rows of tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=list(CLUSTERS), default=TPU, help="Of programs.")
    parser.add_argument("--profile", type=Path, required=True, help="Of calibrate --target.")
    parser.add_argument("--programs", nargs="*", choices=list(PROGRAMS), default=[])
    parser.add_argument("--layers", nargs="*", choices=list(DECODERS), default=[])
    options = parser.parse_args()
    for name in options.programs:
        print(program_row(name, options.target, options.profile), flush=True)
    device = ClusterSpec.named(str(options.profile)).device
    for name in options.layers:
        print(decoder_row(name, device), flush=True)


if __name__ == "__main__":
    main()
