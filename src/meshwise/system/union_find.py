"""Sets that grow together."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Member = TypeVar("Member", bound=Hashable)


class UnionFind(Generic[Member]):
    """Disjoint sets; which member stands for a set is the caller's choice.

    Attributes:
        parent: For each known member another one of its set, in the order in which they came.
    """

    def __init__(self) -> None:
        """Know no members."""
        self.parent: dict[Member, Member] = {}

    def find(self, member: Member) -> Member:
        """Return the member that stands for the set of one; an unknown one is a set of its own."""
        root = self.parent.setdefault(member, member)
        while self.parent[root] != root:
            root = self.parent[root]
        while member != root:
            member, self.parent[member] = self.parent[member], root
        return root

    def join(self, first: Member, other: Member) -> None:
        """Join two sets; what stood for the first stands for both."""
        root = self.find(first)
        self.parent[self.find(other)] = root
