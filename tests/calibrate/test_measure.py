"""What is measured is what it says, on virtual devices; the times themselves are not judged."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable

import jax
import numpy as np
import pytest

from meshwise.calibrate import measure, programs
from meshwise.calibrate.clock import Repetition, seconds_a_turn
from meshwise.calibrate.measure import QUICK_SIZES, calibrate, group_sizes
from meshwise.cluster.collectives import COLLECTIVES
from meshwise.cluster.description.profile import read_profile
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import ClusterError
from meshwise.runtime.hlo.collectives import hlo_collectives

EFFORT = Repetition(repeats=3, run_s=0.1)


class Pretended:
    """A loop on a clock of its own: a call takes `call_s`, each turn `turn_s`."""

    def __init__(self, call_s: float, turn_s: Callable[[], float]) -> None:
        self.time, self.call_s, self.turn_s = 0.0, call_s, turn_s
        self.most = 0

    def run(self, turns: int) -> None:
        self.time += self.call_s + turns * self.turn_s()
        self.most = max(self.most, turns)


@pytest.mark.parametrize(("call_s", "turn_s"), [(0.01, 1e-6), (0.5, 1e-3), (1e-4, 2.0)])
def test_the_time_of_a_turn_is_without_that_of_the_call(call_s: float, turn_s: float):
    loop = Pretended(call_s, lambda: turn_s)
    effort = dataclasses.replace(EFFORT, max_turns=2**20)
    assert seconds_a_turn(loop.run, effort, lambda: loop.time) == pytest.approx(turn_s)
    # As long as the call and as the effort say, and not much longer.
    assert max(0.1, call_s) <= loop.most * turn_s <= 2 * max(0.1, call_s) + 2 * turn_s


def test_a_call_that_takes_longer_than_its_turns_gets_more_of_them():
    noise = itertools.cycle([0.0, 0.05, -0.05])
    loop = Pretended(1.0, lambda: 1e-3)
    found = seconds_a_turn(loop.run, EFFORT, lambda: loop.time + next(noise))
    assert found == pytest.approx(1e-3, rel=0.2)


def test_one_slow_run_does_not_count():
    times = iter([1e-3] * 9 + [9.0] + [1e-3] * 100)
    loop = Pretended(0.0, lambda: next(times))
    assert seconds_a_turn(loop.run, EFFORT, lambda: loop.time) == pytest.approx(1e-3)


def test_turns_that_cost_nothing_end():
    loop = Pretended(1e-3, lambda: 0.0)
    found = seconds_a_turn(loop.run, dataclasses.replace(EFFORT, max_turns=64), lambda: loop.time)
    assert found == pytest.approx(1e-3 / 64)


@pytest.mark.parametrize("kind", COLLECTIVES)
@pytest.mark.parametrize("group", [2, 8])
def test_a_loop_of_collectives_moves_the_stated_bytes(kind: str, group: int):
    num_bytes = 4 * 64 * 3
    loop = programs.collective_loop(jax.devices(), kind, group, num_bytes)
    (record,) = hlo_collectives(loop.compiled_text, (8 // group, group), unknown_trip_count=1)
    assert (record.kind, record.num_bytes, record.group_size) == (kind, num_bytes, group)
    assert loop(0).shape == loop(3).shape


def test_a_loop_of_products_runs_each_of_its_turns():
    loop = programs.matmul_loop(jax.devices(), "float32", 4)
    one, two, three = (np.asarray(loop(turns)) for turns in (1, 2, 3))
    # x w, x w w, x w w w.
    w = np.linalg.lstsq(one, two)[0]
    np.testing.assert_allclose(two @ w, three, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_many_products_stay_finite(dtype: str):
    sizes = measure.ACCELERATOR_SIZES
    loop = programs.matmul_loop(jax.devices()[:1], dtype, 256, times_a_turn=sizes.times_a_turn)
    found = np.asarray(loop(sizes.effort.max_turns), np.float32)
    assert 0.1 < np.abs(found).max() < 1000


def test_a_turn_of_many_products_is_as_many_turns():
    once = programs.matmul_loop(jax.devices(), "float32", 4)
    thrice = programs.matmul_loop(jax.devices(), "float32", 4, times_a_turn=3)
    np.testing.assert_allclose(np.asarray(thrice(2)), np.asarray(once(6)), rtol=1e-5)


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_a_turn_of_many_collectives_moves_as_many_times_the_bytes(kind: str):
    loop = programs.collective_loop(jax.devices(), kind, 8, 768, times_a_turn=3)
    records = hlo_collectives(loop.compiled_text, (1, 8), unknown_trip_count=1)
    assert [(record.kind, record.num_bytes) for record in records] == [(kind, 768)] * 3


def test_a_product_takes_its_share_of_a_turn(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measure, "seconds_a_turn", lambda *_: 8.0)
    sizes = dataclasses.replace(QUICK_SIZES, times_a_turn=4)
    profile = calibrate(jax.devices(), command="", sizes=sizes, memory_bytes=2**30)
    points = (*profile.matmul, *profile.collectives)
    assert {point.seconds for point in points} == {2.0}


def test_a_pass_over_memory_reads_and_writes_the_stated_bytes():
    passes = programs.memory_passes(jax.devices(), 64)
    np.testing.assert_array_equal(np.asarray(passes(3)), np.ones(8, np.float32))


def test_groups_are_pairs_and_all():
    assert group_sizes(8) == (2, 8)
    assert group_sizes(2) == (2,)
    assert group_sizes(3) == (3,)
    assert group_sizes(1) == ()


@pytest.fixture(scope="module")
def reports() -> list[tuple[int, int, str]]:
    return []


def test_a_profile_of_two_devices(tmp_path, reports: list[tuple[int, int, str]]):
    def report(done: int, total: int, text: str) -> None:
        reports.append((done, total, text))

    profile = calibrate(jax.devices()[:2], command="test", sizes=QUICK_SIZES, report=report)
    path = tmp_path / "profile.json"
    path.write_text(profile.to_json())
    assert read_profile(path) == profile
    assert (profile.platform, profile.host.num_devices) == ("cpu", 2)
    assert {name for name, _ in profile.versions} == {"meshwise", "jax", "jaxlib", "python"}
    assert [(p.dtype, p.size) for p in profile.matmul] == [
        ("float32", 64), ("float32", 128), ("bfloat16", 128),
    ]  # fmt: skip
    assert {(p.kind, p.group_size) for p in profile.collectives} == {(k, 2) for k in COLLECTIVES}
    device = profile.host.device
    assert {dtype for dtype, _ in device.flop_per_s} == {"float32", "bfloat16"}
    assert dict(device.dense_times).keys() == {"float32", "bfloat16"}
    numbers = [device.memory_bytes_per_s, profile.host.link.bytes_per_s, device.rate("float32")]
    assert all(0 < number < math.inf for number in numbers)
    assert "measured by meshwise calibrate" in device.source
    assert ClusterSpec.from_profile(path).mesh((2,)).num_devices == 2
    # Each measurement was told, with how many there are.
    assert [done for done, _, _ in reports] == list(range(1, len(reports) + 1))
    assert {total for _, total, _ in reports} == {len(reports)} == {3 + 1 + 5 * 2}


def test_one_device_has_no_link(monkeypatch: pytest.MonkeyPatch):
    profile = calibrate(jax.devices()[:1], command="test", sizes=QUICK_SIZES)
    assert profile.collectives == ()
    assert "one device: link and NIC not measured" in profile.host.source


def test_float64_is_measured_as_such():
    sizes = dataclasses.replace(QUICK_SIZES, matmul=(("float32", (16,)), ("float64", (16,))))
    profile = calibrate(jax.devices()[:1], command="test", sizes=sizes)
    assert [p.dtype for p in profile.matmul] == ["float32", "float64"]
    assert not jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]


def test_devices_that_cannot_be_measured_are_refused(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ClusterError, match="no devices to measure"):
        calibrate([], command="test")
    monkeypatch.setattr(measure, "device_memory_bytes", lambda devices: None)
    with pytest.raises(ClusterError, match="--memory 16GB"):
        calibrate(jax.devices(), command="test")
