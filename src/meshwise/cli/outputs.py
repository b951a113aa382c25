"""Files that a command writes at its end."""

from __future__ import annotations

import os
from pathlib import Path

import click


def check_writable(out: Path) -> None:
    """Refuse before minutes are spent on what cannot be kept.

    Raises:
        click.ClickException: there is no such folder, or nothing can be written there.
    """
    folder = out.parent
    if not folder.is_dir():
        raise click.ClickException(f"cannot write {out}: no folder {folder}; make it first")
    if not os.access(folder, os.W_OK):
        raise click.ClickException(f"cannot write {out}: the folder {folder} is not writable")
