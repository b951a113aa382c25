"""A window that moves along one dim: when the dim can be cut into blocks, and with which edges.

Position `j` of window `i` reads element `i * stride + j * dilation - low` of the operand, which
is padded and has `base - 1` holes between elements.  Both counts play the same part: the loop
over windows is cut in the forward pass, the loop over the positions of a window in the gradient
of a kernel, which is a convolution with a window as long as the image.  A loop is cut where its
blocks and those of the operand stand side by side: count x step = size x base.  Then every block
needs the same edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
from jax import lax


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Windows along one dim.

    Attributes:
        size: Elements of the operand.
        base: Step between elements: 1, or more where holes lie between them.
        low: Padding before the first element.
        count: Windows: elements of the result.
        stride: Step between windows.
        length: Positions in a window.
        dilation: Step between positions.
    """

    size: int
    base: int
    low: int
    count: int
    stride: int
    length: int
    dilation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowBlocks:
    """One loop of the windows of a dim cut into blocks.

    Attributes:
        low: Elements that a block needs of the one before.
        high: Elements that a block needs of the one after.
        cut: Elements to cut off at both ends of the block with these edges.
        padding: What to pad then, before and after; never negative.
    """

    low: int
    high: int
    cut: tuple[int, int]
    padding: tuple[int, int]


def _blocks(
    windows: Windows, count: int, step: int, other_count: int, other_step: int
) -> WindowBlocks | None:
    base = windows.base
    if not windows.size or count * step != windows.size * base:
        return None
    low = max(0, windows.low // base)
    # Beyond the last position of the block, holes counted.
    beyond = (other_count - 1) * other_step - windows.low - step + 1
    high = max(0, -(-beyond // base))
    before, after = windows.low - low * base, beyond - 1 + base - high * base
    if -windows.stride < after < 0:
        after = 0  # too few for one window more
    # XLA:CPU gives wrong results for negative padding of a kernel as long as the image.
    cut = tuple(max(0, -(padding // base)) for padding in (before, after))
    return WindowBlocks(
        low=low,
        high=high,
        cut=(cut[0], cut[1]),
        padding=(before + cut[0] * base, after + cut[1] * base),
    )


def blocks_of_windows(windows: Windows) -> WindowBlocks | None:
    """Return the windows in blocks; None if they are not aligned with blocks of the operand."""
    return _blocks(windows, windows.count, windows.stride, windows.length, windows.dilation)


def blocks_of_positions(windows: Windows) -> WindowBlocks | None:
    """Return the positions of each window in blocks; None if not aligned with the operand."""
    return _blocks(windows, windows.length, windows.dilation, windows.count, windows.stride)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selections:
    """Blocks of the gradient of a maximum: each takes all windows that touch it.

    Attributes:
        windows: Windows that a block needs of the block before and of the block after.
        elements: Elements of the operand that these windows read beyond the block.
    """

    windows: tuple[int, int]
    elements: tuple[int, int]


def blocks_of_selections(windows: Windows) -> Selections | None:
    """Return the elements in blocks, side by side with the windows; None if not aligned."""
    stride, length, low = windows.stride, windows.length, windows.low
    if (windows.base, windows.dilation) != (1, 1) or windows.count * stride != windows.size:
        return None
    before, after = max(0, (length - 1 - low) // stride), (stride - 1 + low) // stride
    beyond = (after - 1) * stride + length - low
    if low < 0 or beyond <= -stride:
        return None
    return Selections(windows=(before, after), elements=(before * stride + low, max(0, beyond)))


def without_ends(block: jax.Array, dim: int, cut: tuple[int, int]) -> jax.Array:
    """Return a block without some elements at both ends of a dim."""
    if cut == (0, 0):
        return block
    return lax.slice_in_dim(block, cut[0], block.shape[dim] - cut[1], axis=dim)
