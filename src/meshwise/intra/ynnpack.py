"""Which values XLA:CPU computes inside of one call of YNNPACK, beside what a reduction absorbs.

A call begins with a reduction and takes in what it knows, step by step: users as long as there is
one, and what only the call reads.  It knows element-wise steps of many elements, what spreads a
value out, and products.  So a softmax, or all of attention from the scores on, is one call.

Source: XLA library_rewriter.cc, ynn_support.cc (IsInstructionPreferredByYnn); compiled programs
(JAX 0.10.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwise.intra.values import FUSIBLE, INPUT, OPAQUE, REDUCE, VIEW, Values

# An element-wise step with fewer elements is left to loops. Source: ynn_support.cc (kMinElements).
_MIN_ELEMENTS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class YnnpackCalls:
    """What YNNPACK computes.

    Attributes:
        kind: Kinds of all values: the result of a call is a reduction, or a product.
        inside: Values that exist only inside of a call.
    """

    kind: list[int]
    inside: frozenset[int]


def ynnpack_calls(values: Values, users: Sequence[Sequence[int]]) -> YnnpackCalls:
    """The calls of a program.

    Args:
        values: Of the program.
        users: Readers of each value.
    """
    calls = _Calls(values, users)
    for v in range(len(values.kind)):
        calls.take_off(v)
    for v in reversed(range(len(values.kind))):
        if calls.kind[v] == REDUCE and v not in calls.inside:
            calls.grow(v)
    return YnnpackCalls(kind=calls.kind, inside=frozenset(calls.inside))


class _Calls:
    """Calls while they are found; lives only inside `ynnpack_calls`."""

    def __init__(self, values: Values, users: Sequence[Sequence[int]]) -> None:
        self.values = values
        self.users = users
        self.kind = list(values.kind)
        self.inside: set[int] = set()
        self.members: dict[int, set[int]] = {}
        self.leaving = frozenset(values.outputs)

    def close(self, members: set[int], root: int) -> None:
        """Make a call of members, whose result is `root`."""
        if self.kind[root] == FUSIBLE:
            self.kind[root] = REDUCE
        for v in members - {root}:
            self.kind[v] = FUSIBLE
            self.inside.add(v)
        self.members[root] = members

    def take_off(self, v: int) -> None:
        """`x - max(x)`, and a step after it that is the only one."""
        values, users, kind = self.values, self.users, self.kind
        inputs = values.inputs[v]
        if kind[v] != FUSIBLE or len(inputs) != 2 or not values.is_absorbed[v]:
            return
        x, spread = inputs
        chain = [spread]
        while kind[chain[-1]] in (FUSIBLE, VIEW) and len(users[chain[-1]]) == 1:
            below = [u for u in values.inputs[chain[-1]] if values.inputs[u]]
            if len(below) != 1:
                break
            chain.append(below[0])
        last = chain[-1]
        if kind[last] != REDUCE or len(users[last]) != 1 or values.inputs[last] != (x,):
            return
        if not self.leaving.isdisjoint(chain):
            return
        root = v
        if len(users[v]) == 1 and v not in self.leaving:
            (user,) = users[v]
            if values.is_absorbed[user] and values.inputs[user] == (v,):
                root = user
        self.close({*chain, v, root}, root)

    def grow(self, start: int) -> None:
        """The call that begins with a reduction, if its result is spread out again in it.

        Or with `x - max(x)`, if it takes something in: a product that makes x.
        """
        values, users = self.values, self.users
        members, root = set(self.members.get(start, (start,))), start
        is_growing = True
        while is_growing:
            before = len(members)
            while root not in self.leaving and len(users[root]) == 1:
                (user,) = users[root]
                if user in members or user in self.inside or not self.is_known(user):
                    break
                members |= self.members.get(user, {user})
                root = user
            for v in sorted(members, reverse=True):
                for u in values.inputs[v]:
                    if u not in members and self.is_own(u, members) and self.is_known(u):
                        members |= self.members.get(u, {u})
            is_growing = len(members) > before
        has_grown = members > self.members.get(start, members)
        is_spread = values.num_elements(root) > values.num_elements(start)
        if has_grown or is_spread or root in values.products:
            self.close(members, root)

    def is_own(self, v: int, members: set[int]) -> bool:
        """Whether only a call reads a value."""
        return v not in self.leaving and members.issuperset(self.users[v])

    def is_known(self, v: int) -> bool:
        """Whether a call takes a value in."""
        values = self.values
        match self.kind[v]:
            case x if x == INPUT or not values.inputs[v]:
                return False
            case x if x == OPAQUE:
                return v in values.products
            case x if x in (VIEW, REDUCE):
                return True
            case _:
                return v in values.spreads or (v in values.ynnpack and self.is_large(v))

    def is_large(self, v: int) -> bool:
        """Whether all steps that XLA makes of an element-wise one have many elements."""
        values = self.values
        most = max(values.num_elements(u) for u in (v, *values.inputs[v]))
        divisor = values.narrow_divisor(v)
        if divisor is not None:
            most = min(most, values.num_elements(divisor))
        return most >= _MIN_ELEMENTS
