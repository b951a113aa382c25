"""A program whose time is wanted: its content, and a form that another process can compile."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from meshwise.jax_compat import exported_program
from meshwise.runtime.pipeline.compiled import LoweredProgram


class Exported(NamedTuple):
    """A program that another process can compile.

    Attributes:
        program: As JAX exports it.
        sizes: Of the mesh that it is written for.
        names: Of its axes.
    """

    program: Any
    sizes: tuple[int, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurable:
    """A program on all devices of this process.

    Attributes:
        name: For messages.
        key: Of its content and of what it runs on.
        export: Makes the form that `clock.ProgramClock` takes.
    """

    name: str
    key: str
    export: Callable[[], Exported]


def measurable(name: str, program: LoweredProgram, mesh: Mesh) -> Measurable:
    """A lowered program as something to measure.

    Args:
        name: For messages.
        program: On the devices of this process.
        mesh: That it is written for.
    """
    device = mesh.devices.flat[0]

    def exported() -> Exported:
        program_of = exported_program(program.jitted, program.in_avals)
        return Exported(program_of, mesh.devices.shape, tuple(map(str, mesh.axis_names)))

    said = hashlib.sha256(program.lowered.as_text().encode())
    said.update(repr(_runs_on(device)).encode())
    return Measurable(name=name, key=said.hexdigest()[:32], export=exported)


def _runs_on(device: Any) -> tuple[object, ...]:
    """What else the time of a program depends on."""
    found = (device.platform, device.device_kind, version("jaxlib"), len(jax.devices()))
    return (*found, os.cpu_count()) if device.platform == "cpu" else found
