"""From measured times to the numbers of the cost model, on times with a known answer."""

from __future__ import annotations

import itertools

import pytest

from meshwise.calibrate.fit import dense_rates, dense_times, link_of, memory_rate, predicted_s
from meshwise.cluster.collectives import COLLECTIVES
from meshwise.cluster.description.profile import CollectivePoint, MatmulPoint, MemoryPoint
from meshwise.cluster.host import Link


def matmul(dtype: str, size: int, seconds: float) -> MatmulPoint:
    return MatmulPoint(dtype=dtype, size=size, seconds=seconds)


def test_the_rate_is_that_of_the_largest_product():
    points = [matmul("float32", 100, 1.0), matmul("float32", 10, 1e-9), matmul("int8", 10, 2.0)]
    assert dense_rates(points) == (("float32", 2e6), ("int8", 1e3))


def test_a_larger_product_never_takes_less_time():
    points = [matmul("float32", 10, 2.0), matmul("float32", 20, 1.0), matmul("float32", 30, 5.0)]
    assert dense_times(points) == (("float32", ((2e3, 2.0), (16e3, 2.0), (54e3, 5.0))),)


def test_the_memory_rate_is_that_of_the_largest_pass():
    points = [MemoryPoint(num_bytes=100, seconds=1.0), MemoryPoint(num_bytes=10, seconds=0.01)]
    assert memory_rate(points) == 100.0


def exact(link: Link, kinds: tuple[str, ...] = COLLECTIVES) -> list[CollectivePoint]:
    """What the cost model itself says of a link."""
    points = [
        CollectivePoint(kind=kind, group_size=group, num_bytes=num_bytes, seconds=1.0)
        for kind, group, num_bytes in itertools.product(kinds, (2, 8), (2**12, 2**18, 2**24))
    ]
    return [
        CollectivePoint(
            kind=p.kind,
            group_size=p.group_size,
            num_bytes=p.num_bytes,
            seconds=predicted_s(p, link),
        )
        for p in points
    ]


@pytest.mark.parametrize("latency_s", [1e-6, 3e-5])
@pytest.mark.parametrize("bytes_per_s", [1e8, 1.5e9, 4e11])
def test_latency_and_bandwidth_of_an_exact_link_are_found(latency_s: float, bytes_per_s: float):
    found = link_of(exact(Link(latency_s=latency_s, bytes_per_s=bytes_per_s)))
    assert found.bytes_per_s == pytest.approx(bytes_per_s, rel=1e-3)
    assert found.latency_s == pytest.approx(latency_s, rel=1e-3)


def test_a_link_without_latency_is_no_error():
    found = link_of(exact(Link(latency_s=0.0, bytes_per_s=1e9)))
    assert found.bytes_per_s == pytest.approx(1e9, rel=1e-3)
    assert 0 <= found.latency_s < 1e-9


def test_twice_as_long_counts_as_much_as_half_as_long():
    points = exact(Link(latency_s=0.0, bytes_per_s=1e9), ("all-gather", "reduce-scatter"))
    skewed = [
        CollectivePoint(
            kind=p.kind,
            group_size=p.group_size,
            num_bytes=p.num_bytes,
            seconds=p.seconds * (2 if p.kind == "all-gather" else 0.5),
        )
        for p in points
    ]
    assert link_of(skewed).bytes_per_s == pytest.approx(1e9, rel=1e-3)


def test_one_measurement_is_enough():
    (point,) = exact(Link(latency_s=1e-5, bytes_per_s=1e9), ("permute",))[:1]
    assert predicted_s(point, link_of([point])) == pytest.approx(point.seconds)
