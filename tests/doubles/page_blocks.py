"""The code blocks of a page, run in order as a reader would, and the output shown below each."""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from click.testing import CliRunner

from meshwise.cli import main

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<kind>\w*)(?P<more>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S
)
_TEACH = ("*.md", "docs/*.md", "docs/tutorials/*.md")
_TITLE = re.compile(r'title="([^"]+)"')
# A process of tests has its eight devices before a page can ask for them.
_DEVICES = re.compile(r'^jax\.config\.update\("jax_num_cpu_devices", 8\).*$', re.M)
# The memory of a virtual CPU device is a share of the memory of the machine.
_MACHINE = re.compile(r"(memory .* of )[\d.]+ GiB")
_CHECKER = doctest.OutputChecker()


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of code.

    Attributes:
        kind: Its language: `python`, `text` (the output of the block before), `console` (commands
            after `$`, with their output), `sh` (commands without), or another, which is a file.
        title: The file that it stands for; "" for code that runs at once.
        text: What stands in it.
        line: The line of the page at which its text begins, from 1 on.
        span: Where its text begins and ends in the page.
    """

    kind: str
    title: str
    text: str
    line: int
    span: tuple[int, int]


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page, in order."""
    found: list[Block] = []
    for match in _FENCE.finditer(page):
        indent = match["indent"]
        text = re.sub(f"^{indent}", "", match["text"], flags=re.M)
        title = _TITLE.search(match["more"])
        found.append(
            Block(
                kind=match["kind"],
                title=title[1] if title else "",
                text=text,
                line=page.count("\n", 0, match.start("text")) + 1,
                span=match.span("text"),
            )
        )
    return found


def commands_of(block: Block) -> Iterator[tuple[str, str]]:
    """Yield each command of a `console` block, and the output that is shown."""
    for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
        command, _, shown = part.replace("\\\n", "").partition("\n")
        yield command, shown


def pages_that_teach() -> dict[str, list[Block]]:
    """Return the blocks of each page that a reader follows, by the name of the page.

    Pages of decisions and of measurements have none that a reader types.
    """
    paths = (path for pattern in _TEACH for path in sorted(ROOT.glob(pattern)))
    names = (path.relative_to(ROOT).as_posix() for path in paths)
    return {name: blocks_of((ROOT / name).read_text(encoding="utf-8")) for name in names}


class Reader:
    """Someone who types a page's blocks in a folder of their own; `sh` blocks are not theirs.

    Args:
        folder: The folder, which is the current one.
        elsewhere: Whether a command is tried by another test.
    """

    def __init__(self, folder: Path, elsewhere: Callable[[str], bool]) -> None:
        self._folder = folder
        self._elsewhere = elsewhere
        self._names: dict[str, object] = {"__name__": "__main__"}
        self._source = ""

    def outputs(self, page: str) -> Iterator[tuple[Block, str, str]]:
        """Yield each block with shown output, what is shown, and what came."""
        printed = ""
        for block in blocks_of(page):
            if block.kind == "text":
                yield block, block.text, printed
            elif block.kind == "console":
                for command, shown in commands_of(block):
                    if not self._elsewhere(command):
                        yield block, shown, self._command(command)
            elif block.title:
                (self._folder / block.title).write_text(block.text, encoding="utf-8")
            elif block.kind == "python":
                printed = self._python(block.text)
            elif block.kind == "yaml":
                yaml.safe_load(block.text)
            elif block.kind != "sh":
                raise AssertionError(f"line {block.line}: a block of {block.kind} without a title")

    def _python(self, text: str) -> str:
        """Run code; its lines count from the first block on, as if all were one file."""
        code = _DEVICES.sub("", text)
        lines = "\n" * self._source.count("\n")
        self._source += text + "\n"
        # Code that prints where its lines are finds itself in the file that a reader keeps it in.
        (self._folder / "step.py").write_text(self._source, encoding="utf-8")
        with contextlib.redirect_stdout(io.StringIO()) as printed, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(lines + code, "step.py", "exec"), self._names)
        return printed.getvalue()

    def _command(self, command: str) -> str:
        words = shlex.split(command, comments=True)
        environment = {}
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            environment[name] = value
        if words[0] == "meshwise" and not environment and words[1] not in ("launch", "train"):
            ran = CliRunner().invoke(main, words[1:])
            if ran.exception is not None and not isinstance(ran.exception, SystemExit):
                raise ran.exception
            return ran.stdout + (ran.stderr if ran.exit_code else "")
        programs = {
            "python": [sys.executable],
            "meshwise": [sys.executable, "-m", "meshwise"],
            # What a target does would take minutes: it is there. `tests/docs/test_shell_blocks.py`
            # runs `make train`, `doubles.site` what `make docs` does, and CI runs the others.
            "make": ["make", "-n", "-C", str(ROOT)],
        }
        ran = subprocess.run(
            [*programs.get(words[0], [words[0]]), *words[1:]],
            cwd=self._folder, env=os.environ | environment, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
        if words[0] == "make":
            assert ran.returncode == 0, ran.stderr
            return ""
        return ran.stdout + (ran.stderr if ran.returncode else "")


def same_output(shown: str, came: str) -> bool:
    """Whether output is as shown; `...` stands for anything, and so does the machine's memory."""
    want, got = (_MACHINE.sub(r"\1? GiB", _trimmed(text)) for text in (shown, came))
    return _CHECKER.check_output(want, got, doctest.ELLIPSIS)


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n"
