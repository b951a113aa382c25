"""Expected trip counts of loops whose trip count is only known when the step runs.

The name scope of the loop says it, so that readers of the compiled program can count.
"""

from __future__ import annotations

import re

_SCOPE = re.compile(r"about_(\d+)_turns\)*/while$")


def turns_scope(count: int) -> str:
    """Return the name scope of a loop.

    Args:
        count: Expected trips.
    """
    return f"about_{count}_turns"


def expected_turns(op_name: str) -> int | None:
    """Return the expected trips of a loop in a compiled program; None if its name has none.

    Args:
        op_name: The name of the `while` instruction, with its scopes.
    """
    found = _SCOPE.search(op_name)
    return int(found[1]) if found else None
