"""Compilers: programs as modules, plugins, and executables that are kept."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import PurePath
from typing import Any
from typing import Literal as OneOf

import numpy as np
from jax import export
from jax._src import compilation_cache, compiler, config
from jax._src.interpreters import mlir
from jax._src.lib import (
    xla_client,  # pyright: ignore[reportPrivateImportUsage]
)
from jax._src.lib.mlir import (
    ir,  # pyright: ignore[reportPrivateImportUsage]
    passmanager,  # pyright: ignore[reportPrivateImportUsage]
)


def exported_program(jitted: Any, operands: Sequence[Any]) -> Any:
    """Export a jitted function so that another process can compile it.

    It pickles, since it has no derivative; `Exported.serialize` would need a package that JAX
    does not require.

    Args:
        jitted: The function.
        operands: Shapes and dtypes of its arguments.

    Returns:
        The exported function.
    """
    return replace(export.export(jitted)(*operands), _get_vjp=None)


class CompilerPlugin:
    """A compiler for devices that are not here; a process can load it once.

    `jax.experimental.topologies` does the same for plugins that JAX has found by itself; here the
    plugin is a file, so that the process needs no device and no driver.  JAX 0.10.2.

    Args:
        platform: How JAX names the platform, as `cuda`.
        path: File of the plugin.
    """

    def __init__(self, platform: str, path: str) -> None:
        self._api = xla_client.load_pjrt_plugin_dynamically(platform, path)
        xla_client.initialize_pjrt_plugin(platform)

    def devices(self, name: str, options: Mapping[str, Any]) -> list[Any]:
        """Return devices to compile for.

        Args:
            name: How the compiler names the devices, as "v5e:2x4".
            options: What else it asks for.
        """
        made = xla_client.make_c_api_device_topology(self._api, name, **options)
        return made._make_compile_only_devices()


def module_of(lowered: Any) -> tuple[bytes, str]:
    """Return a lowered program as MLIR bytecode, and a digest that source lines do not change.

    Args:
        lowered: What `jax.jit(...).trace(...).lower(...)` returns.

    Returns:
        The bytecode, with source lines, and the digest.
    """
    operation = lowered.compiler_ir("stablehlo").operation
    whole, bare = io.BytesIO(), io.BytesIO()
    operation.write_bytecode(whole)
    with operation.context:
        clone = operation.clone()
        passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(clone.operation)
    clone.operation.write_bytecode(bare)
    return whole.getvalue(), hashlib.sha256(bare.getvalue()).hexdigest()


def compile_module(module: bytes, devices: Sequence[Any], options: Mapping[str, str | bool]) -> Any:
    """Compile a lowered program for devices that are not here.

    Args:
        module: StableHLO as MLIR bytecode.
        devices: The devices of its mesh, row-major (`CompilerPlugin.devices`).
        options: Compile options by name.

    Returns:
        An executable that has a text and a memory analysis, and that cannot run.
    """
    client = devices[0].client
    settings = compiler.get_compile_options(
        num_replicas=1,
        num_partitions=len(devices),
        device_assignment=np.array([[device.id for device in devices]]),
        env_options_overrides=dict(options),  # type: ignore[arg-type]
        backend=client,
    )
    with mlir.make_ir_context():
        parsed = ir.Module.parse(module)
    return client.compile(parsed, xla_client.DeviceList(tuple(devices)), settings)


def keeps_programs() -> OneOf["nowhere", "elsewhere", "here"]:
    """Return where JAX keeps executables: it must not, it has a folder, or it may be given one."""
    if not config.enable_compilation_cache.value:
        return "nowhere"
    return "elsewhere" if config.compilation_cache_dir.value else "here"


@contextmanager
def programs_kept(folder: PurePath | None) -> Iterator[None]:
    """Let JAX keep all executables that this thread compiles, also those that took little time.

    JAX opens one folder for the whole process when it first needs it, which it has forgotten after
    the block.  JAX 0.10.2.

    Args:
        folder: Where; None: where JAX is told already, if it is.
    """
    with (
        config.persistent_cache_min_compile_time_secs(0.0),
        config.persistent_cache_min_entry_size_bytes(0),
    ):
        if folder is None:
            yield
            return
        compilation_cache.reset_cache()
        try:
            with config.compilation_cache_dir(str(folder)):
                yield
        finally:
            compilation_cache.reset_cache()


def damaged_program(data: bytes) -> bool:
    """Return whether a file of JAX's compilation cache was not written to its end.

    Args:
        data: The file.
    """
    try:
        compilation_cache.decompress_executable(data)
    except Exception:  # each way of compression has its own error
        return True
    return False
