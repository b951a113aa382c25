"""The reader against programs compiled here, on 8 virtual CPU devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from meshwise.runtime.device_memory import device_peak_bytes
from meshwise.runtime.hlo.collectives import hlo_collectives
from meshwise.runtime.hlo.flop import hlo_dense_flop

pytestmark = pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 devices")

OPTIONS = {
    "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
    "xla_disable_hlo_passes": "cse,while-loop-invariant-code-motion,cpu-all-reduce-combiner",
    "xla_cpu_copy_insertion_use_region_analysis": True,
}
SIZES = (2, 4)
LOCAL = (8, 16)  # Of one device, float32: 512 bytes.
RING = [(i, (i + 1) % 4) for i in range(4)]


def compile_local(fun: Callable[..., Any], sizes: tuple[int, ...] = SIZES) -> Any:
    """Compile `fun` on a local block of shape LOCAL per device, result one block per device."""
    names = tuple("abcdef"[: len(sizes)])
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(sizes), names)
    spec = P(names)
    x = jax.ShapeDtypeStruct((LOCAL[0] * 8, LOCAL[1]), jnp.float32)
    mapped = jax.shard_map(fun, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.jit(mapped, compiler_options=OPTIONS).lower(x).compile()


def found(fun: Callable[..., Any], sizes: tuple[int, ...] = SIZES) -> list[tuple[Any, ...]]:
    """Sorted (kind, axes, num_bytes, count) of the collectives of the compiled `fun`."""
    records = hlo_collectives(compile_local(fun, sizes).as_text(), sizes)
    return sorted((r.kind, r.axes, r.num_bytes, r.count) for r in records)


def gather(x: jax.Array, axes: Any, dim: int = 0) -> jax.Array:
    return lax.all_gather(x, axes, axis=dim, tiled=True)


def scatter(x: jax.Array, axes: Any, dim: int = 0) -> jax.Array:
    return lax.psum_scatter(x, axes, scatter_dimension=dim, tiled=True)


@pytest.mark.parametrize(
    ("fun", "expected"),
    [
        (lambda x: lax.psum(x, "a"), ("all-reduce", (0,), 512, 1)),
        (lambda x: lax.psum(x, "b"), ("all-reduce", (1,), 512, 1)),
        (lambda x: lax.psum(x, ("a", "b")), ("all-reduce", (0, 1), 512, 1)),
        (lambda x: lax.pmax(x, "b"), ("all-reduce", (1,), 512, 1)),
        (lambda x: scatter(x, "b"), ("reduce-scatter", (1,), 512, 1)),
        (lambda x: scatter(x, "a", 1), ("reduce-scatter", (0,), 512, 1)),
        (lambda x: gather(x, "a"), ("all-gather", (0,), 1024, 1)),
        (lambda x: gather(x, "b", 1), ("all-gather", (1,), 2048, 1)),
        (lambda x: gather(x, ("a", "b")), ("all-gather", (0, 1), 4096, 1)),
        (lambda x: gather(x, ("b", "a")), ("all-gather", (0, 1), 4096, 1)),
        (lambda x: lax.all_to_all(x, "a", 0, 1, tiled=True), ("all-to-all", (0,), 1024, 1)),
        (lambda x: lax.all_to_all(x, "b", 1, 0, tiled=True), ("all-to-all", (1,), 2048, 1)),
        (lambda x: lax.ppermute(x, "b", RING), ("permute", (1,), 2048, 1)),
        (lambda x: lax.ppermute(x, "b", [(0, 2), (2, 0)]), ("permute", (1,), 2048, 1)),
        (lambda x: lax.ppermute(x, "a", [(0, 1)]), ("permute", (0,), 1024, 1)),
    ],
)
def test_single_collective(fun: Callable[..., Any], expected: tuple[Any, ...]) -> None:
    assert found(fun) == [expected]


def test_axes_of_a_three_dimensional_mesh() -> None:
    def fun(x: jax.Array) -> jax.Array:
        return lax.psum(jnp.sin(lax.psum(x, ("a", "c"))), "b")

    assert found(fun, (2, 2, 2)) == [
        ("all-reduce", (0, 2), 512, 1),
        ("all-reduce", (1,), 512, 1),
    ]


def test_axes_of_size_one_move_nothing_and_are_not_named() -> None:
    def fun(x: jax.Array) -> jax.Array:
        return lax.psum(jnp.sin(lax.psum(x, "b")), ("b", "c")) + gather(x, "b")

    assert found(fun, (2, 1, 4)) == [("all-reduce", (2,), 512, 1)]


def test_tuple_all_reduce_sums_its_operands() -> None:
    def fun(x: jax.Array) -> jax.Array:
        y, z = lax.psum((x, jnp.sin(x).sum(axis=0)), "b")
        return y + z

    records = hlo_collectives(compile_local(fun).as_text(), SIZES)
    assert {(r.kind, r.axes) for r in records} == {("all-reduce", (1,))}
    assert sum(r.num_bytes * r.count for r in records) == 512 + 64


def test_scan_and_nested_scan_multiply() -> None:
    def fun(x: jax.Array) -> jax.Array:
        def inner(c: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.sin(lax.psum(c, "a")), None

        def outer(c: jax.Array, _: None) -> tuple[jax.Array, None]:
            c = jnp.cos(lax.ppermute(c, "b", RING))
            return lax.scan(inner, c, None, length=5)[0], None

        return lax.scan(outer, x, None, length=3)[0]

    assert found(fun) == [("all-reduce", (0,), 512, 15), ("permute", (1,), 2048, 3)]


def test_loop_invariant_psum_stays_in_the_loop() -> None:
    def fun(x: jax.Array) -> jax.Array:
        return lax.scan(lambda c, _: (jnp.tanh(c + lax.psum(x, "b")), None), x, None, length=4)[0]

    assert found(fun) == [("all-reduce", (1,), 512, 4)]


def test_fori_loop_counts_from_its_start() -> None:
    def fun(x: jax.Array) -> jax.Array:
        return lax.fori_loop(2, 9, lambda i, c: jnp.sin(lax.psum(c, "b") * i), x)

    assert found(fun) == [("all-reduce", (1,), 512, 7)]


def test_conditional_counts_every_branch_once() -> None:
    def fun(x: jax.Array) -> jax.Array:
        heavy = lambda c: lax.psum(c, "a") + gather(c, "b")[:8]  # noqa: E731
        return lax.cond(x[0, 0] > 0, heavy, lambda c: lax.psum(c, "a"), x)

    assert found(fun) == [
        ("all-gather", (1,), 2048, 1),
        ("all-reduce", (0,), 512, 1),
        ("all-reduce", (0,), 512, 1),
    ]


def test_unused_collective_is_gone() -> None:
    def fun(x: jax.Array) -> jax.Array:
        lax.psum(jnp.sin(x), "b")
        return x

    assert found(fun) == []


def test_two_gathers_of_one_value_stay_two() -> None:
    def fun(x: jax.Array) -> jax.Array:
        first = jnp.tanh(gather(x, "b")).sum()
        return x + (gather(x, "b") * first).sum()

    assert found(fun) == [("all-gather", (1,), 2048, 1)] * 2


def test_independent_psums_are_not_combined() -> None:
    def fun(x: jax.Array) -> jax.Array:
        return lax.psum(jnp.sin(x), "b") + lax.psum(jnp.cos(x), "b")

    assert found(fun) == [("all-reduce", (1,), 512, 1)] * 2


def test_psum_of_zeros_folds_so_constants_must_be_generated() -> None:
    assert found(lambda x: x + lax.psum(jnp.zeros_like(x), "b")) == []


def test_collectives_name_where_they_come_from() -> None:
    (record,) = hlo_collectives(compile_local(lambda x: lax.psum(x, "b")).as_text(), SIZES)
    assert record.op_name.endswith("psum")
    assert record.groups == ((0, 1, 2, 3), (4, 5, 6, 7))


def compile_whole(fun: Callable[..., Any], *shapes: tuple[int, ...]) -> Any:
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.jit(fun, compiler_options=OPTIONS).lower(*args).compile()


def conv(stride: int = 1, groups: int = 1) -> Callable[..., Any]:
    return lambda x, k: lax.conv_general_dilated(
        x,
        k,
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def conv_grad(stride: int = 1) -> Callable[..., Any]:
    return jax.grad(lambda x, k: (conv(stride)(x, k) ** 2).sum(), (0, 1))


def scan_matmul(x: jax.Array, w: jax.Array) -> jax.Array:
    return lax.scan(lambda c, v: (jnp.tanh(c @ v), None), x, w)[0]


@pytest.mark.parametrize(
    ("fun", "shapes", "expected"),
    [
        (jnp.matmul, [(64, 32), (32, 16)], 2 * 64 * 32 * 16),
        (lambda a, b: a.T @ b.T, [(32, 64), (16, 32)], 2 * 64 * 32 * 16),
        (jnp.matmul, [(64, 32), (32,)], 2 * 64 * 32),
        (jnp.matmul, [(4, 8, 16), (4, 16, 32)], 2 * 4 * 8 * 16 * 32),
        (
            lambda q, k: jnp.einsum("bthd,bshd->bhts", q, k),
            [(2, 16, 4, 8), (2, 12, 4, 8)],
            2 * 2 * 4 * 16 * 12 * 8,
        ),
        (scan_matmul, [(8, 16), (6, 16, 16)], 6 * 2 * 8 * 16 * 16),
        (
            jax.grad(lambda w, x: scan_matmul(x, w).sum()),
            [(6, 16, 16), (8, 16)],
            3 * 6 * 2 * 8 * 16 * 16,
        ),
        (
            lambda x, w: lax.cond(x[0, 0] > 0, lambda: x @ w @ w, lambda: x @ w),
            [(8, 16), (16, 16)],
            3 * 2 * 8 * 16 * 16,  # Every branch counts once.
        ),
        (conv(), [(2, 8, 8, 4), (3, 3, 4, 16)], 2 * 2 * 8 * 8 * 16 * 9 * 4),
        (conv(stride=2), [(2, 8, 8, 4), (3, 3, 4, 16)], 2 * 2 * 4 * 4 * 16 * 9 * 4),
        (conv(groups=2), [(2, 8, 8, 4), (3, 3, 2, 16)], 2 * 2 * 8 * 8 * 16 * 9 * 2),
        (conv(groups=4), [(2, 8, 8, 4), (3, 3, 1, 4)], 2 * 2 * 8 * 8 * 4 * 9),
        (conv_grad(), [(2, 8, 8, 4), (3, 3, 4, 16)], 3 * 2 * 2 * 8 * 8 * 16 * 9 * 4),
        (conv_grad(stride=2), [(2, 8, 8, 4), (3, 3, 4, 16)], 3 * 2 * 2 * 4 * 4 * 16 * 9 * 4),
    ],
)
def test_dense_flop(fun: Callable[..., Any], shapes: list[tuple[int, ...]], expected: int) -> None:
    assert hlo_dense_flop(compile_whole(fun, *shapes).as_text()) == expected


def test_peak_counts_a_donated_buffer_once() -> None:
    size = 64 * 64 * 4
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    plain = jax.jit(lambda x: x + 1).lower(x).compile()
    donated = jax.jit(lambda x: x + 1, donate_argnums=0).lower(x).compile()
    assert device_peak_bytes(plain) == 2 * size
    assert device_peak_bytes(donated) == size


def test_peak_counts_temporaries() -> None:
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    compiled = jax.jit(lambda x: jnp.tanh(x @ x) @ x).lower(x).compile()
    assert device_peak_bytes(compiled) == 3 * 64 * 64 * 4
