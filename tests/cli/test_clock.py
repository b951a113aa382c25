"""The clock of a command begins with its process."""

from __future__ import annotations

import subprocess
import sys
import time

import click
import pytest

from meshwise.cli import main
from meshwise.cli.clock import process_start


def test_the_process_began_before_its_first_line_and_after_its_parent_asked_for_it() -> None:
    script = f"""
import time
first = time.monotonic()
import sys
sys.path[:0] = {sys.path!r}
from meshwise.cli.clock import process_start
print(process_start(), first)
"""
    before = time.monotonic()
    out = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True).stdout
    start, first = map(float, out.split())
    # Linux counts in hundredths of a second.
    assert before - 0.05 <= start <= first


def test_a_command_has_the_clock_only_where_the_process_is_its_own(monkeypatch) -> None:
    seen: list[float | None] = []
    group = type(main)("group")

    @group.command
    def show() -> None:
        seen.append(click.get_current_context().obj)

    group.get_command = lambda ctx, cmd_name: show
    monkeypatch.setattr(sys, "argv", ["meshwise", "show"])
    for call in (group, lambda: group(["show"])):
        with pytest.raises(SystemExit, match="^0$"):
            call()
    assert seen[1] is None
    assert seen[0] is not None
    assert abs(seen[0] - process_start()) < 600
