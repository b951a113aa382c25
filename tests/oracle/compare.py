"""Whether a parallel run means the same as the run on one device: invariant I1.

Every addressable shard is compared, not only what `np.asarray` shows (the first of the
replicas), and replicas must be equal to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from oracle.problem import Trajectory, raw
from oracle.tolerances import BF16_LOSS, BF16_OF_MOVEMENT, FP32_OF_MOVEMENT, FP32_OF_NORM, X64

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Leaf:
    """One leaf of a result.

    Attributes:
        path: Where it stands.
        want: On one device.
        got: Put together from all shards.
        start: In the first state; None for what is no state.
    """

    path: str
    want: Array
    got: Array
    start: Array | None


def whole_from_shards(value: Any, path: str = "") -> Array:
    """A result put together from every addressable shard; replicas must be bit-equal."""
    if not isinstance(value, jax.Array):
        return np.asarray(value)
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        # Shards of key arrays are keys; their words have one dim more, never split.
        parts = [(s.index, raw(s.data)) for s in value.addressable_shards]
        out = np.zeros((*value.shape, *parts[0][1].shape[value.ndim :]), parts[0][1].dtype)
    else:
        parts = [(s.index, np.asarray(s.data)) for s in value.addressable_shards]
        out = np.zeros(value.shape, value.dtype)
    seen: dict[Any, Array] = {}
    for index, data in parts:
        corner = tuple((part.start, part.stop) for part in index)
        if corner in seen:
            assert data.tobytes() == seen[corner].tobytes(), f"{path}: replicas differ"
        seen[corner] = data
        out[index] = data
    return out


def leaves(want: Trajectory, got: Trajectory) -> Iterator[Leaf]:
    """All leaves of the last state and of the other results of every step."""
    for name, wanted, found, start in (
        ("state", want.state, got.state, want.start),
        ("outs", want.outs, got.outs, None),
    ):
        assert jax.tree.structure(wanted) == jax.tree.structure(found), f"{name}: trees differ"
        starts = jax.tree.leaves(start) if start is not None else None
        flat = jax.tree_util.tree_flatten_with_path(wanted)[0]
        for position, ((path, a), b) in enumerate(zip(flat, jax.tree.leaves(found), strict=True)):
            text = name + jax.tree_util.keystr(path)
            whole = whole_from_shards(b, text)
            assert whole.shape == a.shape, f"{text}: shape {whole.shape}, wanted {a.shape}"
            assert whole.dtype == a.dtype, f"{text}: dtype {whole.dtype}, wanted {a.dtype}"
            yield Leaf(text, a, whole, starts[position] if starts is not None else None)


def _is_exact(leaf: Leaf) -> bool:
    return not np.issubdtype(leaf.want.dtype, np.inexact) and leaf.want.dtype.name != "bfloat16"


def _check_exact(leaf: Leaf) -> None:
    np.testing.assert_array_equal(leaf.got, leaf.want, err_msg=leaf.path)


def _excepted(leaf: Leaf, noise: frozenset[str]) -> bool:
    return any(leaf.path.endswith(end) for end in noise)


def x64_error(leaf: Leaf) -> float:
    """Largest error as a share of `max(1, max |leaf|)`."""
    if leaf.want.size == 0:
        return 0.0
    if not np.array_equal(np.isfinite(leaf.want), np.isfinite(leaf.got)):
        return np.inf
    scale = max(1.0, float(np.max(np.abs(leaf.want))))
    return float(np.max(np.abs(leaf.got - leaf.want))) / scale


def assert_same_x64(
    want: Trajectory, got: Trajectory, noise: frozenset[str] = frozenset()
) -> float:
    """The rule for float64; returns the largest error, as `x64_error`."""
    worst = 0.0
    for leaf in leaves(want, got):
        if _is_exact(leaf):
            _check_exact(leaf)
        elif not _excepted(leaf, noise):
            assert leaf.want.dtype in (np.float64, np.complex128), f"{leaf.path}: no x64 run"
            error = x64_error(leaf)
            assert error <= X64, f"{leaf.path}: error {error:.2e} of max(1, max|leaf|)"
            worst = max(worst, error)
    return worst


def assert_same_fp32(
    want: Trajectory, got: Trajectory, noise: frozenset[str] = frozenset()
) -> float:
    """The rule for float32; returns the largest error as a share of the leaf's norm."""
    worst = 0.0
    for leaf in leaves(want, got):
        if _is_exact(leaf):
            _check_exact(leaf)
            continue
        if _excepted(leaf, noise):
            continue
        wide = leaf.want.astype(np.float64)
        error = float(np.linalg.norm(leaf.got.astype(np.float64) - wide))
        norm = float(np.linalg.norm(wide))
        assert error <= FP32_OF_NORM * norm, f"{leaf.path}: error {error:.2e}, norm {norm:.2e}"
        if leaf.start is not None:
            moved = float(np.linalg.norm(wide - leaf.start))
            text = f"{leaf.path}: error {error:.2e}, moved {moved:.2e}"
            assert error <= FP32_OF_MOVEMENT * moved, text
        worst = max(worst, error / norm if norm else 0.0)
    return worst


def assert_same_bf16(want: Trajectory, got: Trajectory) -> float:
    """The loose rule for bfloat16 compute; returns the error as a share of the movement."""
    error = moved = 0.0
    for leaf in leaves(want, got):
        if _is_exact(leaf):
            _check_exact(leaf)
            continue
        wide, found = leaf.want.astype(np.float64), leaf.got.astype(np.float64)
        if leaf.start is None:
            np.testing.assert_allclose(found, wide, rtol=BF16_LOSS, err_msg=leaf.path)
        else:
            error += float(np.sum(np.square(found - wide)))
            moved += float(np.sum(np.square(wide - leaf.start)))
    share = float(np.sqrt(error / moved))
    assert share <= BF16_OF_MOVEMENT, f"error {share:.2e} of the movement"
    return share


Compare = Callable[..., float]
