"""What `meshwise doctor` says of the compilers with which plans are verified."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from meshwise.doctor.finding import Finding
from meshwise.errors import ClusterError
from meshwise.targets.packages import PACKAGES, InstalledCompiler, installed_compiler

_NAMES = MappingProxyType({"cuda": "GPU compiler", "tpu": "TPU compiler"})

CompilerOf = Callable[[str], InstalledCompiler]


def check_compilers(compiler_of: CompilerOf = installed_compiler) -> list[Finding]:
    """Return a finding for the compiler of each platform; none of them is needed to run a step.

    Args:
        compiler_of: The installed compiler of a platform, as JAX names it; raises `ClusterError`
            where none fits.
    """
    return [_check(platform, compiler_of) for platform in PACKAGES]


def _check(platform: str, compiler_of: CompilerOf) -> Finding:
    what = _NAMES[platform]
    try:
        found = compiler_of(platform).name
    except ClusterError as error:
        return Finding(
            what=what,
            status="note",
            found="none that can be used; optional",
            remedy=f"to verify plans for devices that are not here: {error}",
        )
    return Finding(what=what, status="ok", found=f"{found}; optional")
