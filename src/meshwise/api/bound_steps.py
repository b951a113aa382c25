"""Steps that are methods: each object keeps its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, cast

from meshwise.errors import TraceError

_Step = TypeVar("_Step")


class _Kept(Generic[_Step]):
    """A step in the attributes of the object whose method it is; a copy of the object has none."""

    def __init__(self, step: _Step | None = None, owner: object = None) -> None:
        self.step = step
        self.owner = owner

    def __reduce__(self) -> tuple[type[_Kept[_Step]], tuple[()]]:
        return _Kept, ()


def kept_step(owner: object, name: str, number: int, make: Callable[[], _Step]) -> _Step:
    """Return the step of an object, which keeps it as long as it lives.

    Args:
        owner: The object.
        name: Name of the step.
        number: Tells apart steps of one name.
        make: Makes the step at the first call.

    Raises:
        TraceError: the object has no place to keep its step.
    """
    try:
        attributes = vars(owner)
    except TypeError:
        raise TraceError(
            f"{name} is a method of {type(owner).__name__}, whose __slots__ leave no place for "
            "the compiled step; add '__dict__' to them, or parallelize a function"
        ) from None
    key = f"_parallel_{name}_{number}"
    known = attributes.get(key)
    if isinstance(known, _Kept):
        kept = cast("_Kept[_Step]", known)
        if kept.owner is owner and kept.step is not None:
            return kept.step
    step = make()
    attributes[key] = _Kept(step, owner)
    return step
