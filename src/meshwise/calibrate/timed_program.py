"""A program whose time is wanted: its content, and a form that another process can compile."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from meshwise.jax_compat.compilers import exported_program
from meshwise.runtime.devices import Device
from meshwise.runtime.pipeline.compiled import LoweredProgram


class Exported(NamedTuple):
    """A program that another process can compile.

    Attributes:
        program: The program as JAX exports it.
        sizes: Sizes of the axes of the mesh that it is written for.
        names: Names of these axes.
    """

    program: jax.export.Exported
    sizes: tuple[int, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurable:
    """A program on all devices of this process.

    Attributes:
        name: The name for messages.
        key: Digest of its content and of what it runs on.
        export: Makes the form that `clock.ProgramClock` takes.
    """

    name: str
    key: str
    export: Callable[[], Exported]


def measurable(name: str, program: LoweredProgram, mesh: Mesh) -> Measurable:
    """Return a lowered program as something to measure.

    Args:
        name: The name for messages.
        program: The program on the devices of this process.
        mesh: The mesh that it is written for.
    """
    device = mesh.devices.flat[0]

    def exported() -> Exported:
        program_of = exported_program(program.jitted, program.in_avals)
        return Exported(program_of, mesh.devices.shape, tuple(map(str, mesh.axis_names)))

    said = hashlib.sha256(program.lowered.as_text().encode())
    said.update(repr(_runs_on(device)).encode())
    return Measurable(name=name, key=said.hexdigest()[:32], export=exported)


def _runs_on(device: Device) -> tuple[object, ...]:
    """Return what else the time of a program depends on."""
    found = (device.platform, device.device_kind, version("jaxlib"), len(jax.devices()))
    return (*found, os.cpu_count()) if device.platform == "cpu" else found
