"""Convolutions with strides, dilations and groups, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from rule_cases.case import Case, ints


def _conv(strides: Any = (1, 1), padding: Any = "SAME", **options: Any) -> Callable[..., Any]:
    return lambda x, k: lax.conv_general_dilated(x, k, strides, padding, **options)


def _gradients(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Both gradients; the equation of the forward pass is there too."""

    def fun(x: Any, k: Any) -> Any:
        out, back = jax.vjp(forward, x, k)
        return back(out)

    return fun


_IMAGE = ints(8, 4, 3, 3)
_KERNEL = ints(8, 4, 3, 3)
_ON_ALL_MESHES = ("feature groups",)
_LAST = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}


def _case(name: str, fun: Callable[..., Any], x: Any = _IMAGE, k: Any = _KERNEL) -> Case:
    return Case("conv_general_dilated", name, fun, (x, k), costly=name not in _ON_ALL_MESHES)


CASES = (
    _case("plain", _conv()),
    _case("channels last", _conv(**_LAST), ints(8, 3, 3, 4), ints(3, 3, 4, 8)),
    _case("gradients", _gradients(_conv())),
    _case("feature groups", _conv(feature_group_count=2), k=ints(8, 2, 3, 3)),
    _case("batch groups", _conv(batch_group_count=2)),
    _case("depthwise", _conv(feature_group_count=8), ints(4, 8, 3, 3), ints(8, 1, 3, 3)),
    _case(
        "gradients of groups",
        _gradients(_conv(feature_group_count=2)),
        ints(4, 8, 3, 3),
        ints(8, 4, 3, 3),
    ),
    _case(
        "gradients of batch groups",
        _gradients(_conv(batch_group_count=4)),
        ints(8, 2, 3, 3),
        ints(8, 2, 3, 3),
    ),
    _case(
        "gradients of a depthwise one with multiplier, strided, channels last",
        _gradients(_conv((2, 1), feature_group_count=8, **_LAST)),
        ints(4, 4, 3, 8),
        ints(3, 3, 1, 16),
    ),
    _case(
        "gradients of a strided and dilated one",
        _gradients(_conv((2, 1), ((1, 2), (0, 1)), lhs_dilation=(1, 2), rhs_dilation=(2, 1))),
        ints(4, 4, 4, 3),
        ints(4, 4, 2, 2),
    ),
    # Its gradients are convolutions of which XLA:CPU computes wrong ones: negative padding.
    _case("spatial, shift", _conv((1,), ((-1, 1),)), ints(2, 2, 8), ints(2, 2, 1)),
    *(
        _case(f"spatial gradients, {name}", _gradients(_conv(strides, padding, **more)), x, k)
        for name, strides, padding, more, x, k in (
            ("corners", (1, 1), "SAME", {}, ints(1, 2, 8, 8), ints(2, 2, 3, 3)),
            ("strided", (2,), "SAME", {}, ints(2, 2, 16), ints(2, 2, 3)),
            ("first of a net", (2,), ((3, 3),), {}, ints(1, 2, 32), ints(2, 2, 7)),
            ("dilated", (1,), "SAME", {"rhs_dilation": (2,)}, ints(2, 2, 16), ints(2, 2, 3)),
            ("transposed", (1,), ((1, 2),), {"lhs_dilation": (2,)}, ints(2, 2, 8), ints(2, 2, 3)),
            ("causal", (1,), ((2, 0),), {}, ints(2, 2, 16), ints(2, 2, 3)),
            ("strided shortcut", (2,), "VALID", {}, ints(2, 2, 16), ints(2, 2, 1)),
            ("patches", (4,), "VALID", {}, ints(1, 2, 32), ints(2, 2, 4)),
            ("depthwise", (1,), "SAME", {"feature_group_count": 2}, ints(2, 2, 8), ints(4, 1, 3)),
            ("whole image", (1,), "VALID", {}, ints(2, 2, 8), ints(2, 2, 8)),
        )
    ),
)
