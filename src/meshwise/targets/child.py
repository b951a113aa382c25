"""The process that compiles: it loads a compiler's plugin and answers with what it says.

Plugins disturb their process: they print, they take over JAX's devices, and nothing interrupts a
compilation.  So they live in a process of their own, which is ended when nobody waits any more.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from meshwise.system.child_process import requests

# What a parent starts (`system.child_process.ChildProcess`).
SCRIPT = "from meshwise.targets.child import answer_requests; answer_requests()"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileRequest:
    """A program and the devices for which it is compiled.

    Attributes:
        module: StableHLO as MLIR bytecode.
        num_devices: Devices of its mesh.
        options: Compile options by name.
        platform: `cuda` or `tpu`.
        plugin: File of the compiler's plugin.
        topology: How the compiler names the devices.
        device_text: Properties of a GPU as text; empty for a TPU.
    """

    module: bytes
    num_devices: int
    options: dict[str, str | bool]
    platform: str
    plugin: str
    topology: str
    device_text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileAnswer:
    """What the compiler says of a program; of one device, in bytes.

    Attributes:
        argument_bytes: Arguments.
        output_bytes: Results.
        alias_bytes: Results that lie where donated arguments lay.
        temporary_bytes: Everything else, at its highest.
        text: Optimised and scheduled HLO.
        seconds: Seconds of compilation.
        error: Why it does not compile; empty if it does.
    """

    argument_bytes: int = 0
    output_bytes: int = 0
    alias_bytes: int = 0
    temporary_bytes: int = 0
    text: str = ""
    seconds: float = 0.0
    error: str = ""

    @property
    def peak_bytes(self) -> int:
        """Bytes of one device while the program runs."""
        held = self.argument_bytes + self.output_bytes - self.alias_bytes
        return held + self.temporary_bytes


def answer_requests() -> None:
    """Compile what is asked for until nobody asks any more."""
    import jax

    # This process has no devices of its own.
    jax.config.update("jax_platforms", "cpu")
    from meshwise.jax_compat import CompilerPlugin, compile_module

    plugins: dict[str, CompilerPlugin] = {}
    devices: dict[tuple[str, str], list[Any]] = {}
    for request, answer in requests():
        start = time.monotonic()
        place = request.topology, request.device_text
        try:
            if request.plugin not in plugins:
                plugins[request.plugin] = CompilerPlugin(request.platform, request.plugin)
            if place not in devices:
                devices[place] = plugins[request.plugin].devices(*place)
            wanted = devices[place][: request.num_devices]
            made = compile_module(request.module, wanted, request.options)
            stats = made.get_compiled_memory_stats()
            (module,) = made.hlo_modules()
            text = module.to_string()
        except Exception as error:  # Of any kind: the one that asks must know it.
            reason = str(error) if isinstance(error, RuntimeError) else repr(error)
            answer(CompileAnswer(error=reason, seconds=time.monotonic() - start))
            continue
        answer(
            CompileAnswer(
                argument_bytes=stats.argument_size_in_bytes,
                output_bytes=stats.output_size_in_bytes,
                alias_bytes=stats.alias_size_in_bytes,
                temporary_bytes=stats.temp_size_in_bytes,
                text=text,
                seconds=time.monotonic() - start,
            )
        )
