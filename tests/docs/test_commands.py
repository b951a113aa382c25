"""Commands of Meshwise on any page have the options that they name."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import click
import pytest

from doubles.page_blocks import ROOT
from meshwise.cli import main

CONTEXT = click.Context(main)
COMMANDS = {name: main.get_command(CONTEXT, name) for name in main.list_commands(CONTEXT)}
_FENCE = re.compile(r"^ *```[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"\bmeshwise ([a-z]+)((?: [^|&;\n]*)?)")
# What follows a program is for the program.
_PROGRAM = re.compile(r".*\.py|-m")


def commands() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Page, command and options of each command in a block, or between backticks."""
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]):
        if path.name == "CHANGELOG.md":
            continue
        page = path.read_text(encoding="utf-8").replace("\\\n", " ")
        for text in (*_FENCE.findall(page), *re.findall(r"`([^`\n]+)`", _FENCE.sub("", page))):
            for name, more in _COMMAND.findall(text):
                if name in COMMANDS:
                    words = itertools.takewhile(
                        lambda word: not _PROGRAM.fullmatch(word), more.partition(" # ")[0].split()
                    )
                    options = tuple(w.partition("=")[0] for w in words if w.startswith("--"))
                    yield path.relative_to(ROOT).as_posix(), name, options


def test_options_on_pages_exist() -> None:
    found = list(commands())
    assert len({name for _, name, _ in found}) == len(COMMANDS)
    unknown: list[str] = []
    for page, name, options in found:
        command = COMMANDS[name]
        assert command is not None
        known = {"--help", *(o for p in command.params for o in (*p.opts, *p.secondary_opts))}
        unknown += [f"{page}: meshwise {name} {o}" for o in options if o not in known]
    assert unknown == []


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_stands_in_the_documentation(name: str) -> None:
    assert any(command == name for page, command, _ in commands() if "/" in page)
