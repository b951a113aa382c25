"""Cores, memory, caches and compiled kernels."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from meshwise.doctor.finding import Finding
from meshwise.system.cores import usable_cores
from meshwise.system.result_files import ResultFiles
from meshwise.system.user_cache import RECORDS, user_cache
from meshwise.units import GIB, bytes_text

# A test run and a small planning job need about this much.
_LEAST_MEMORY = 2 * GIB
_LEAST_DISK = 1 * GIB


def check_cores() -> Finding:
    """Return the cores that this process may use."""
    return Finding(what="cores", status="ok", found=str(usable_cores()))


def check_memory(meminfo: Path = Path("/proc/meminfo")) -> Finding:
    """Return the memory of this host, all of it and what is free."""
    try:
        lines = (line.split() for line in meminfo.read_text(encoding="utf-8").splitlines())
        found = {words[0]: int(words[1]) * 1024 for words in lines if len(words) > 1}
        total, free = found["MemTotal:"], found["MemAvailable:"]
    except (OSError, KeyError, ValueError, UnicodeDecodeError):
        return Finding(what="memory", status="note", found="this system does not say")
    text = f"{bytes_text(free)} free of {bytes_text(total)}"
    if free < _LEAST_MEMORY:
        remedy = f"have {bytes_text(_LEAST_MEMORY)} free: end other programs"
        return Finding(what="memory", status="note", found=text, remedy=remedy)
    return Finding(what="memory", status="ok", found=text)


def check_accelerator(
    platform: str | None,
    dev: Path = Path("/dev"),
    which: Callable[[str], str | None] = shutil.which,
) -> Finding | None:
    """Return whether JAX leaves a GPU unused; None if there is none, or JAX sees it.

    Args:
        platform: The platform of the devices that JAX sees; None if it sees nothing.
        dev: The folder of the files of devices.
        which: Finds programs.
    """
    if platform not in (None, "cpu"):
        return None
    if not any(dev.glob("nvidia[0-9]*")) and which("nvidia-smi") is None:
        return None
    return Finding(
        what="GPU",
        status="note",
        found="there is an NVIDIA driver, but JAX does not use it",
        remedy='pip install "meshwise[gpu]"; then unset JAX_PLATFORMS, or set it to cuda,cpu',
    )


def check_kernels() -> list[Finding]:
    """Return the folder of compiled kernels, and whether all are in it."""
    try:
        # What imports Numba may fail, which is to be said and not to end the doctor.
        from meshwise.kernels.folder import has_all_kernels, kernel_folder

        folder = kernel_folder()
        is_complete = has_all_kernels("assignment")
    except Exception as error:
        text = f"Numba cannot be loaded: {type(error).__name__}: {error}"
        remedy = 'pip install --force-reinstall "numba>=0.61"'
        return [Finding(what="solver code", status="broken", found=text, remedy=remedy)]
    if folder is None:
        return [
            Finding(
                what="solver cache",
                status="broken",
                found="no folder can be written that is this user's own",
                remedy="set XDG_CACHE_HOME to a folder that only this user can write",
            )
        ]
    return [check_folder(folder), check_complete(is_complete=is_complete)]


def check_jax_cache(environment: Mapping[str, str] = os.environ) -> Finding:
    """Return the folder in which JAX keeps compiled programs, if it was told one."""
    what, variable = "JAX cache", "JAX_COMPILATION_CACHE_DIR"
    name = environment.get(variable)
    if not name:
        text = (
            f"{variable} is not set: Meshwise keeps the programs of its steps in {user_cache()}, "
            "other functions are compiled anew in every process"
        )
        return Finding(what=what, status="ok", found=text)
    folder = Path(name)
    # What is not there yet is made below the nearest folder that is.
    nearest = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if nearest.is_dir() and os.access(nearest, os.W_OK):
        return Finding(what=what, status="ok", found=str(folder))
    return Finding(
        what=what,
        status="note",
        found=f"{folder} cannot be written",
        remedy=f"set {variable} to a folder that you can write, or unset it",
    )


def check_records(folder: Path | None = None) -> Finding:
    """Return where `meshwise plan` keeps what it found out about layers, and how many bytes."""
    folder = folder or user_cache() / RECORDS
    num_bytes = ResultFiles(folder, 0).num_bytes()
    return Finding(what="plan cache", status="ok", found=f"{folder}, {bytes_text(num_bytes)}")


def check_folder(folder: Path, free_bytes: int | None = None) -> Finding:
    """Return whether there is space where the solver's code is kept."""
    free = shutil.disk_usage(folder).free if free_bytes is None else free_bytes
    text = f"{folder}, {bytes_text(free)} free"
    if free < _LEAST_DISK:
        remedy = "make space, or set XDG_CACHE_HOME to another disk"
        return Finding(what="solver cache", status="note", found=text, remedy=remedy)
    return Finding(what="solver cache", status="ok", found=text)


def check_complete(*, is_complete: bool) -> Finding:
    """Return whether all kernels are compiled."""
    if is_complete:
        return Finding(what="solver code", status="ok", found="compiled")
    return Finding(
        what="solver code",
        status="note",
        found="not all of it is compiled",
        remedy="the first large problem compiles it (about a minute); it is done now by: "
        'python -c "from meshwise.inter.kernel_set import compile_all_kernels as f; f()"',
    )
