"""Convolutions: groups, batch and output channels are parallel, input channels are a sum.

Channels of a grouped convolution are (group, channel in the group), major to minor; so are the
rows of a batch-grouped one.  Spatial dims are cut in blocks that overlap (`rules.windows`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import jax

from meshwise.graph.layout import SUM
from meshwise.graph.loops import DimMap, LoopRule
from meshwise.graph.sent import Halo
from meshwise.rules.loop_list import LoopList
from meshwise.rules.primitive import Equation, PrimitiveRule, Shards, rebind
from meshwise.rules.windows.window import (
    WindowBlocks,
    Windows,
    blocks_of_positions,
    blocks_of_windows,
    without_ends,
)


def _groups(eqn: Equation) -> int:
    """Return feature groups or batch groups; XLA allows one of them only."""
    return max(eqn.params["feature_group_count"], eqn.params["batch_group_count"])


def _windows(eqn: Equation, dim: int) -> Windows:
    """Return the windows along one spatial dim."""
    numbers, params = eqn.params["dimension_numbers"], eqn.params
    lhs, rhs, out = (aval.shape for aval in (*eqn.in_avals, *eqn.out_avals))
    return Windows(
        size=lhs[numbers.lhs_spec[2 + dim]],
        base=params["lhs_dilation"][dim],
        low=params["padding"][dim][0],
        count=out[numbers.out_spec[2 + dim]],
        stride=params["window_strides"][dim],
        length=rhs[numbers.rhs_spec[2 + dim]],
        dilation=params["rhs_dilation"][dim],
    )


def _spatial_blocks(eqn: Equation, dim: int) -> tuple[WindowBlocks | None, bool]:
    """Return blocks of a spatial dim, and whether they are of the kernel instead of the result.

    Where both are possible, those that exchange less.
    """
    windows = _windows(eqn, dim)
    of_result, of_kernel = blocks_of_windows(windows), blocks_of_positions(windows)
    if of_result is None or of_kernel is None:
        return of_result or of_kernel, of_result is None
    takes_kernel = of_kernel.low + of_kernel.high < of_result.low + of_result.high
    return (of_kernel if takes_kernel else of_result), takes_kernel


def conv_rule(eqn: Equation) -> LoopRule:
    """Return loops in the order: group, batch, output channels, input channels, spatial dims.

    A spatial loop runs over the result, or, where the kernel is as long as the image, over the
    kernel: then it is a sum.
    """
    numbers = eqn.params["dimension_numbers"]
    rhs, out = eqn.in_avals[1].shape, eqn.out_avals[0].shape
    groups = _groups(eqn)
    loops = LoopList()
    group = loops.add(groups)
    batch = loops.add(out[numbers.out_spec[0]])
    out_channels = loops.add(rhs[numbers.rhs_spec[0]] // groups)
    in_channels = loops.add(rhs[numbers.rhs_spec[1]], SUM)
    by_feature = eqn.params["feature_group_count"] > 1
    rows = batch if by_feature else (*group, *batch)
    features = (*group, *in_channels) if by_feature else in_channels
    lhs_spatial: list[tuple[int, ...]] = []
    rhs_spatial: list[tuple[int, ...]] = []
    out_spatial: list[tuple[int, ...]] = []
    halos: list[Halo] = []
    for dim in range(len(numbers.lhs_spec) - 2):
        windows = _windows(eqn, dim)
        blocks, of_kernel = _spatial_blocks(eqn, dim)
        loop: tuple[int, ...] = ()
        if blocks is not None and of_kernel:
            loop = loops.add(windows.length, SUM, block=True)
        elif blocks is not None:
            loop = loops.add(windows.count, block=True)
        if loop and blocks is not None:
            place = numbers.lhs_spec[2 + dim]
            halos.append(Halo(0, place, windows.size, blocks.low, blocks.high))
        lhs_spatial.append(loop)
        rhs_spatial.append(loop if of_kernel else ())
        out_spatial.append(() if of_kernel else loop)
    return LoopRule(
        loops.done(),
        (
            _placed(numbers.lhs_spec, (rows, features, *lhs_spatial)),
            _placed(numbers.rhs_spec, ((*group, *out_channels), in_channels, *rhs_spatial)),
        ),
        (_placed(numbers.out_spec, (batch, (*group, *out_channels), *out_spatial)),),
        linear=((0,), (1,)),
        whole="" if all(lhs_spatial) else "spatial dims whose windows are not aligned",
        halos=tuple(halos),
    )


def _placed(spec: tuple[int, ...], dims: tuple[tuple[int, ...], ...]) -> DimMap:
    """Return loops of the dims in the order of the array, from batch, feature, spatial dims."""
    found: list[tuple[int, ...]] = [()] * len(spec)
    for place, loops in zip(spec, dims, strict=True):
        found[place] = loops
    return tuple(found)


def local_conv(eqn: Equation, shards: Shards, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Return the convolution, with the groups that are here and the padding of the blocks."""
    numbers = eqn.params["dimension_numbers"]
    changes: dict[str, object] = {}
    if _groups(eqn) > 1:
        for name in ("feature_group_count", "batch_group_count"):
            changes[name] = max(1, eqn.params[name] // shards.parts(0))
    padding = list(eqn.params["padding"])
    lhs, rhs = operands
    for dim in range(len(padding)):
        place = numbers.lhs_spec[2 + dim]
        loop = shards.rule.operands[0][place]
        if loop and shards.parts(loop[0]) > 1:
            blocks, _ = _spatial_blocks(eqn, dim)
            assert blocks is not None
            lhs = without_ends(lhs, place, blocks.cut)
            padding[dim] = blocks.padding
    return rebind(eqn, (lhs, rhs), padding=tuple(padding), **changes)


def conv_flop(eqn: Equation) -> float:
    """2 x result elements x kernel elements that one of them reads.

    Padding counts as data, the holes of a dilated input do not: a strided convolution and its
    gradients count the same.  Where the kernel is larger than the image XLA takes the one for the
    other (SwapConvOperands): a result then reads the whole image.
    """
    image, kernel = (aval.shape for aval in eqn.in_avals[:2])
    spec = eqn.params["dimension_numbers"]
    places = math.prod(kernel[d] for d in spec.rhs_spec[2:])
    points = math.prod(image[d] for d in spec.lhs_spec[2:])
    groups = eqn.params["feature_group_count"] * eqn.params["batch_group_count"]
    if places > points and groups == 1:
        reads = float(points)
    else:
        reads = places / math.prod(eqn.params["lhs_dilation"])
    return 2.0 * math.prod(eqn.out_avals[0].shape) * reads * kernel[spec.rhs_spec[1]]


def conv_dim_orders(eqn: Equation) -> tuple[tuple[int, ...], ...]:
    """Return the dims of image, kernel and result, as `graph.Operator.dim_orders` wants them."""
    spec = eqn.params["dimension_numbers"]
    return tuple(tuple(order) for order in (spec.lhs_spec, spec.rhs_spec, spec.out_spec))


TABLE: Mapping[str, PrimitiveRule] = {
    "conv_general_dilated": PrimitiveRule(
        conv_rule, local_conv, conv_flop, heavy=True, dim_orders=conv_dim_orders
    )
}
