"""Objects as keys by their identity."""

from __future__ import annotations


class Same:
    """A key that is equal for one object only, and keeps it alive.

    A number from `id(...)` may be that of another object once the first one is gone; this cannot.
    """

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        """Take the object."""
        self.value = value

    def __hash__(self) -> int:
        """Return a hash of the object's identity."""
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        """Return whether the other key is of the same object."""
        return isinstance(other, Same) and self.value is other.value
