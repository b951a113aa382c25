"""Whether scores are under a causal mask and no other: then each row sees itself and all before.

Only then may hidden scores be left out.  A row of which all keys are masked has equal weights for
all of them, so that what another mask leaves of a row must be known.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeGuard

from meshwise.rules.attention.scores import ROW, Positions, Scores
from meshwise.rules.steps import Number

# Less than this is no score: its exponential is 0 beside that of any score that is seen.
_HIDDEN = -1e8


class _Place(NamedTuple):
    """The number of a row or of a key, and what is added to it."""

    dim: int
    offset: float


# What a boolean says of a pair of row and key: the row sees it, always, the row does not see it.
_SEEN, _ALL, _UNSEEN = "seen", "all", "unseen"
# The product with numbers applied to it, and the same under the mask.
_SCORES, _MASKED = "scores", "masked"
# Types that hold the number of every row, and numbers below 0.
_EXACT = frozenset(("int32", "int64", "float32", "float64"))
# What may be done to scores before they are masked, with numbers.
_APPLIED = frozenset(("add", "sub", "mul", "div", "neg", "tanh"))


def is_causal(scores: Scores) -> bool:
    """Return whether a causal mask hides scores, and nothing else does.

    Args:
        scores: How scores follow from the product, without other operands.
    """
    found: list[Any] = [_SCORES]
    for step in scores.steps:
        if isinstance(step, Positions):
            found.append(_Place(step.dim, 0) if step.dtype in _EXACT else None)
        elif isinstance(step, Number):
            found.append(_ALL if step.value is True else step.value)
        else:
            inputs = [found[i] for i in step.inputs]
            is_cast = step.primitive.name == "convert_element_type"
            if is_cast and isinstance(inputs[0], _Place):
                dtype = str(dict(step.params)["new_dtype"])
                found.append(inputs[0] if dtype in _EXACT else None)
            else:
                found.append(_of(step.primitive.name, inputs))
    return found[-1] == _MASKED


def _of(name: str, inputs: list[Any]) -> Any:
    """Return what is known of the result of an operation."""
    if name == "convert_element_type":
        return inputs[0]
    if name == "select_n":
        return _selected(*inputs) if len(inputs) == 3 else None
    if name == "not":
        return {_SEEN: _UNSEEN, _UNSEEN: _SEEN}.get(inputs[0])
    if name in _APPLIED and _SCORES in inputs:
        return _SCORES if all(x == _SCORES or _is_number(x) for x in inputs) else None
    if len(inputs) != 2:
        return None
    left, right = inputs
    if name == "and" and _ALL in inputs:
        return right if left == _ALL else left
    if name in ("add", "sub") and isinstance(left, _Place) and _is_number(right):
        return _Place(left.dim, left.offset + (right if name == "add" else -right))
    if name == "add" and isinstance(right, _Place) and _is_number(left):
        return _Place(right.dim, right.offset + left)
    if isinstance(left, _Place) and isinstance(right, _Place) and left.dim != right.dim:
        return _compared(name, left, right)
    return None


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _compared(name: str, left: _Place, right: _Place) -> str | None:
    """Return what a comparison of rows and keys is; each row must see itself and no key after."""
    swapped = {"ge": "le", "le": "ge", "gt": "lt", "lt": "gt"}
    if left.dim != ROW:
        left, right, name = right, left, swapped.get(name, "")
    # row + left compared with key + right
    shift = left.offset - right.offset
    if (name, shift) in (("ge", 0), ("gt", 1)):
        return _SEEN
    if (name, shift) in (("lt", 0), ("le", 1)):
        return _UNSEEN
    return None


def _selected(which: Any, if_not: Any, if_so: Any) -> Any:
    """Return what is chosen where a boolean is false, and where it is true."""
    if which == _UNSEEN:
        which, if_not, if_so = _SEEN, if_so, if_not
    if which != _SEEN:
        return None
    if if_not is False and if_so == _ALL:
        return _SEEN
    is_hidden = _is_number(if_not) and if_not < _HIDDEN
    return _MASKED if is_hidden and if_so == _SCORES else None
