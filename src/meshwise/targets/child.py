"""The process that compiles: it loads a compiler's plugin and answers with what it says.

Plugins disturb their process: they print, they take over JAX's devices, and nothing interrupts a
compilation.  So they live in a process of their own, which is ended when nobody waits any more.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from typing import Any

import jax

from meshwise.jax_compat.compilers import CompilerPlugin, compile_module
from meshwise.runtime.device_memory import CompiledBytes, reported_bytes
from meshwise.system.child_process import requests
from meshwise.targets.compile_target import TargetSlice
from meshwise.units import GIB, MIB

# What libtpu must be told where there is no TPU: not to ask the cloud which one there is, and not
# to insist on being the only process.
_WITHOUT_TPU = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}

# How libtpu 0.0.42.1 refuses a program that no device can hold; arguments and results are among
# these "temporaries".
_TOO_LARGE = re.compile(r"memory required for HLO temporaries \((\d+\.\d+)([MGT])\) exceeds")
_UNITS = {"M": MIB, "G": GIB, "T": 1024 * GIB}

# What a parent starts (`system.child_process.ChildProcess`).
SCRIPT = "from meshwise.targets.child import answer_requests; answer_requests()"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileRequest:
    """A program and the devices for which it is compiled.

    Attributes:
        module: StableHLO as MLIR bytecode.
        num_devices: Devices of its mesh.
        options: Compile options by name.
        platform: How JAX names the platform, as `cuda`.
        plugin: File of the compiler's plugin.
        slice: How the compiler is asked for devices.
    """

    module: bytes
    num_devices: int
    options: dict[str, str | bool]
    platform: str
    plugin: str
    slice: TargetSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileAnswer:
    """What the compiler says of a program.

    Attributes:
        memory: Bytes of one device; all of them temporary where the program is too large.
        text: Optimised and scheduled HLO; empty where the compiler says only that the program needs
            more memory than a device has.
        seconds: Seconds of compilation.
    """

    memory: CompiledBytes
    text: str
    seconds: float

    @property
    def is_too_large(self) -> bool:
        """Whether the compiler refused the program for the memory that it needs."""
        return not self.text


def refused_memory(text: str, seconds: float) -> CompileAnswer | None:
    """Return the answer in which a compiler refuses a program for its memory.

    Args:
        text: Why it does not compile.
        seconds: How long that took.

    Returns:
        None where that is not the reason.
    """
    found = _TOO_LARGE.search(text)
    if found is None:
        return None
    needed = round(float(found[1]) * _UNITS[found[2]])
    memory = CompiledBytes(argument_bytes=0, output_bytes=0, alias_bytes=0, temporary_bytes=needed)
    return CompileAnswer(memory=memory, text="", seconds=seconds)


def answer_requests() -> None:
    """Compile what is asked for until nobody asks any more.

    The answer is a `CompileAnswer`, or a text that says why the program does not compile.
    """
    os.environ.update(_WITHOUT_TPU)
    # This process has no devices of its own.
    jax.config.update("jax_platforms", "cpu")
    plugins: dict[str, CompilerPlugin] = {}
    devices: dict[str, list[Any]] = {}
    for request, answer in requests():
        start = time.monotonic()
        place = repr(request.slice)
        try:
            if request.plugin not in plugins:
                plugins[request.plugin] = CompilerPlugin(request.platform, request.plugin)
            if place not in devices:
                devices[place] = plugins[request.plugin].devices(
                    request.slice.name, request.slice.options
                )
            wanted = devices[place][: request.num_devices]
            made = compile_module(request.module, wanted, request.options)
            memory = reported_bytes(made.get_compiled_memory_stats())
            (module,) = made.hlo_modules()
            text = module.to_string()
        except Exception as error:  # Of any kind: the one that asks must know it.
            text = str(error) if isinstance(error, RuntimeError) else repr(error)
            answer(refused_memory(text, time.monotonic() - start) or text)
            continue
        answer(CompileAnswer(memory=memory, text=text, seconds=time.monotonic() - start))
