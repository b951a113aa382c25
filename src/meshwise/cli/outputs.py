"""What a command writes at its end: files, and texts on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from meshwise.system.atomic_file import write_atomically
from meshwise.system.writable import probe_writable


def check_writable(out: Path) -> None:
    """Refuse before minutes are spent on what cannot be kept.

    Raises:
        click.ClickException: there is no such folder, or nothing can be written there.
    """
    folder = out.parent
    if not folder.is_dir():
        raise click.ClickException(f"cannot write {out}: no folder {folder}; make it first")
    if out.is_dir():
        raise click.ClickException(f"cannot write {out}: it is a folder; give the name of a file")
    try:
        probe_writable(folder)
    except OSError as error:
        raise click.ClickException(
            f"cannot write {out}: {folder} takes no file ({error.strerror or error})"
        ) from error


def write_output(out: Path, text: str) -> None:
    """Write a file whole or not at all.

    Raises:
        click.ClickException: it cannot be written.
    """
    try:
        write_atomically(out, text)
    except OSError as error:
        raise click.ClickException(f"cannot write {out}: {error.strerror or error}") from error


def echo_text(text: str, warning: Sequence[str]) -> None:
    """Print a text whose first lines warn; these are red on a terminal, as they are elsewhere.

    Args:
        text: All of it, with the end of its last line.
        warning: The lines with which it starts; none where there is nothing to warn of.
    """
    head = "\n".join(warning)
    # `click.echo` leaves the colour out where the output is no terminal.
    click.echo(click.style(head, fg="red") + text.removeprefix(head) if head else text, nl=False)
