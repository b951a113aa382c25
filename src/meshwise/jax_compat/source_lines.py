"""The user's lines: of equations, of gradients, of errors."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import PurePath
from typing import NamedTuple

from jax._src import source_info_util

SourceInfo = source_info_util.SourceInfo


# Functions of JAX under which the loss runs while it is differentiated.
_GRADIENT_FRAMES = frozenset({"value_and_grad_f"})


# Folders of packages, and ours.
_INSTALLED = frozenset({"site-packages", "dist-packages"})


_OURS = PurePath(__file__).parents[1]


# Our folder of what a user could have written.
_MODELS = _OURS / "models"


# Parts of a function's name that name none; those of comprehensions are of Python before 3.12.
_NO_FUNCTION = re.compile(r"(?:^|\.)<(?:locals|(?:list|dict|set)comp)>")


# Packages whose gradients take a user's function as `jax.grad` does.
_WRAPPERS = frozenset({"flax", "equinox"})


def source_line(source: SourceInfo | None) -> str:
    """Return the user's source line of an equation, as `model.py:88:4 (step.loss_fn)`.

    Without the folder, and with what every Python calls the function: equal steps in other places
    have equal plans, and a plan tells nothing of the machine that made it.

    Args:
        source: The source of an equation.

    Returns:
        The line; that of a package where the user has none; empty where there is only our own code.
    """
    first = frame = None
    for found in _frames(source):
        first = first or found
        # A line of Flax is the same for all layers of a kind: the line that calls it is not.
        if not _is_installed(found.file_name):
            frame = found
            break
    frame = frame or first
    if frame is None:
        return ""
    column = f":{frame.start_column}" if frame.start_column else ""
    return f"{PurePath(frame.file_name).name}:{frame.start_line}{column} ({_function(frame)})"


def _function(frame: source_info_util.Frame) -> str:
    """Return the name of the function of a frame, equal under every Python."""
    return _NO_FUNCTION.sub("", frame.function_name) or "<module>"


def _frames(source: SourceInfo | None) -> Iterator[source_info_util.Frame]:
    """Yield the frames of users and of packages, inner ones first."""
    if source is not None:
        for frame in source_info_util.user_frames(source.traceback):
            if not _is_ours(frame.file_name):
                yield frame


@lru_cache(maxsize=1024)
def _is_ours(file: str) -> bool:
    path = PurePath(file)
    return path.is_relative_to(_OURS) and not path.is_relative_to(_MODELS)


@lru_cache(maxsize=1024)
def _is_installed(file: str) -> bool:
    path = PurePath(file)
    return not path.is_relative_to(_OURS) and not _INSTALLED.isdisjoint(path.parts)


def best_source(own: SourceInfo | None, call: SourceInfo | None) -> SourceInfo | None:
    """Choose the source of an equation: that of its call if only this one shows a line of the user.

    The source of an equation of a body ends where the body begins (since JAX 0.11), which may be in
    a package.

    Args:
        own: The source of the equation.
        call: The source of the call that holds it.

    Returns:
        One of the two.
    """
    if call is None or _shows_user(own):
        return own
    return call if _shows_user(call) or next(_frames(own), None) is None else own


def _shows_user(source: SourceInfo | None) -> bool:
    return any(not _is_installed(frame.file_name) for frame in _frames(source))


class GradientCall(NamedTuple):
    """The user's line at which JAX's own gradient is taken.

    Attributes:
        path: Its file.
        line: The number of the line.
        function: The function that it is in.
        package: The package that takes the gradient for the user; empty if the line does.
    """

    path: str
    line: int
    function: str
    package: str


def gradient_call(
    source: SourceInfo | None, around: Sequence[SourceInfo] = ()
) -> GradientCall | None:
    """Return the user's call of `jax.grad` or `jax.value_and_grad`.

    Args:
        source: Source of an equation.
        around: Sources of the equations whose bodies hold it, inner ones first; the traceback of
            an equation ends where its body begins.

    Returns:
        None if the equation was not traced inside of such a call.
    """
    inside, package = False, ""
    for info in (source, *around):
        for frame in info.traceback.frames if info and info.traceback else ():
            if source_info_util.is_user_filename(frame.file_name):
                if not inside:
                    continue
                library = _package(frame.file_name)
                if not library:
                    return GradientCall(frame.file_name, frame.line_num, _function(frame), package)
                package = package or ("" if library in _WRAPPERS else library)
            elif frame.function_name.rpartition(".")[2] in _GRADIENT_FRAMES:
                inside = True
    return None


def _package(path: str) -> str:
    """Return the installed package, or ours, that a file belongs to; empty for the user's files."""
    if PurePath(path).is_relative_to(_OURS):
        return _OURS.name
    parts = PurePath(path).parts
    at = next((k for k, part in enumerate(parts) if part in _INSTALLED), None)
    return "" if at is None else PurePath(parts[at + 1]).stem


@contextmanager
def source_scope(source: SourceInfo | None) -> Iterator[None]:
    """Give equations that are bound inside the source line of the equation for which they stand.

    Args:
        source: The source of that equation.

    Returns:
        A context manager.
    """
    if source is None:
        yield
        return
    with source_info_util.user_context(source.traceback, name_stack=source.name_stack):
        yield


def raising_line(error: BaseException) -> str:
    """Return the user's line from which an error comes, as `source_line` writes it.

    Args:
        error: The error.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if source_info_util.is_user_filename(frame.filename) and not _is_ours(frame.filename)
    ]
    if not frames:
        return ""
    return f"{PurePath(frames[-1].filename).name}:{frames[-1].lineno} ({frames[-1].name})"
