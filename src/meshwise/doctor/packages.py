"""Python and the packages that Meshwise needs, in the versions that it needs."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import zip_longest

from meshwise.doctor.finding import Finding

_OLDEST_PYTHON = (3, 11)
# What an extra is for.
_EXTRAS = {"train": "`meshwise train` and models by name", "ray": "several hosts"}
_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*(?P<bounds>[^;]*)"
    r"(?:;.*?extra == ['\"](?P<extra>[\w-]+)['\"])?"
)

VersionOf = Callable[[str], str]


def check_python(found: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Return the version of Python."""
    text = ".".join(map(str, found))
    if tuple(found[:2]) >= _OLDEST_PYTHON:
        machine = f"{platform.machine()}, {platform.system()}"
        return Finding(what="Python", status="ok", found=f"{text} ({machine})")
    oldest = ".".join(map(str, _OLDEST_PYTHON))
    return Finding(
        what="Python", status="broken", found=text, remedy=f"install Python {oldest} or newer"
    )


def check_packages(
    requirements: Iterable[str] | None = None, version_of: VersionOf = version
) -> list[Finding]:
    """Return a finding for each required package, and for each extra that is worth knowing.

    Args:
        requirements: Requirements as in a package's metadata; by default those of Meshwise.
        version_of: The installed version of a package.
    """
    if requirements is None:
        try:
            requirements = (*(requires("meshwise") or ()), *_jaxlib())
        except PackageNotFoundError:
            return [
                Finding(
                    what="meshwise",
                    status="broken",
                    found="not installed, only found in a folder",
                    remedy="`make setup`, or `pip install -e .` in its folder",
                )
            ]
    found: list[Finding] = []
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match is None:
            continue
        name, bounds, extra = match["name"], match["bounds"].strip(), match["extra"]
        if extra is None:
            found.append(_required(name, bounds, version_of))
        elif extra in _EXTRAS:
            found.append(_optional(name, extra, bounds, version_of))
    return found


def _jaxlib() -> list[str]:
    """Return what this version of JAX needs of its library; nothing if JAX is not there."""
    try:
        return [text for text in requires("jax") or () if re.match(r"jaxlib\b[^;]*$", text)]
    except PackageNotFoundError:
        return []


def _required(name: str, bounds: str, version_of: VersionOf) -> Finding:
    remedy = f'pip install "{name}{bounds}"'
    try:
        installed = version_of(name)
    except PackageNotFoundError:
        return Finding(what=name, status="broken", found="not installed", remedy=remedy)
    if not fits(installed, bounds):
        text = f"{installed}, but {bounds} is needed"
        return Finding(what=name, status="broken", found=text, remedy=remedy)
    return Finding(what=name, status="ok", found=installed)


def _optional(name: str, extra: str, bounds: str, version_of: VersionOf) -> Finding:
    remedy = f'for {_EXTRAS[extra]}: pip install "meshwise[{extra}]"'
    try:
        installed = version_of(name)
    except PackageNotFoundError:
        text = "not installed; optional"
        return Finding(what=name, status="note", found=text, remedy=remedy)
    if not fits(installed, bounds):
        text = f"{installed}, but {bounds} is needed; optional"
        return Finding(what=name, status="note", found=text, remedy=remedy)
    return Finding(what=name, status="ok", found=f"{installed}; optional")


def fits(installed: str, bounds: str) -> bool:
    """Return whether a version fits bounds of the form `>=1.2,<2` or `<=2`; others do not count."""
    for bound in filter(None, (part.strip() for part in bounds.split(","))):
        match = re.fullmatch(r"(>=|<=|<)\s*([\w.]+)", bound)
        if match is None:
            continue
        pairs = list(zip_longest(_numbers(installed), _numbers(match[2]), fillvalue=0))
        mine, other = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        fitting = {">=": mine >= other, "<=": mine <= other, "<": mine < other}
        if not fitting[match[1]]:
            return False
    return True


def _numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a version: `0.10.2.dev1` is (0, 10, 2)."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()
