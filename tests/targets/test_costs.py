"""Profiles from XLA:GPU and XLA:TPU themselves."""

from __future__ import annotations

import pytest

from meshwise.calibrate.measure import QUICK_SIZES, Sizes
from meshwise.calibrate.target import calibrate_target, host_of_target
from meshwise.cluster.description.profile import Profile
from meshwise.targets.catalog import compile_target

SIZES = Sizes(
    matmul=(("bfloat16", (256, 2048)), ("float32", (2048,))),
    memory=(2**26,),
    collectives=(),
    effort=QUICK_SIZES.effort,
)


def profile_of(name: str) -> Profile:
    target = compile_target(name)
    return calibrate_target(target, host_of_target(target), command="c", sizes=SIZES)


@pytest.mark.slow
@pytest.mark.usefixtures("tpu_compiler")
def test_xla_tpu_expects_something_below_the_peak() -> None:
    host = profile_of("v5e").host
    peak = host.peak
    assert peak is not None
    for dtype, rate in host.device.flop_per_s:
        assert 0.3 * dict(peak.flop_per_s)[dtype] < rate < dict(peak.flop_per_s)[dtype]
    assert 0.5 < host.device.memory_bytes_per_s / peak.memory_bytes_per_s < 1
    # A small product reaches less.
    assert 2 * 256**3 / host.device.dense_s(2 * 256**3, "bfloat16") < host.device.rate("bfloat16")


@pytest.mark.usefixtures("gpu_compiler")
def test_xla_gpu_expects_something_below_the_peak() -> None:
    host = profile_of("h100").host
    peak = host.peak
    assert peak is not None
    for dtype in ("bfloat16", "float32"):
        peak_rate = dict(peak.flop_per_s)[dtype]
        assert 0.3 * peak_rate < host.device.rate(dtype) < peak_rate
    assert "memory as described" in host.device.source
