"""Warnings of plans, as lines of a command: they name options, and no line of a package."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from meshwise.errors import PlanWarning


@contextmanager
def plan_warnings_shown(show: Callable[[str], object]) -> Generator[None]:
    """Let a command say what a plan warns of, while a block runs.

    Args:
        show: Is told each warning.
    """
    with warnings.catch_warnings():  # It restores `showwarning`.
        warnings.simplefilter("always", PlanWarning)
        usual = warnings.showwarning

        def told(message: Warning | str, category: type[Warning], *place: Any) -> None:
            if issubclass(category, PlanWarning):
                show(str(message))
            else:
                usual(message, category, *place)

        warnings.showwarning = told
        yield
