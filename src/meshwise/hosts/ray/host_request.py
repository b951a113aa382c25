"""What is asked of Ray for each host of a job."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from meshwise.errors import LaunchError
from meshwise.system.cpu_threads import thread_variables

# What JAX looks for, by the name that Ray has for it; data comes by way of the host.
_PLATFORMS = {"GPU": "cuda,cpu", "TPU": "tpu,cpu"}


def ray_module(name: str = "ray") -> Any:
    """Return a module of Ray, imported now.

    Args:
        name: Its name.

    Raises:
        LaunchError: Ray, or what this module needs, is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise LaunchError(
            f"{name} cannot be imported ({error}); pip install 'meshwise[ray]'"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRequest:
    """The hosts that Ray is to give.

    Attributes:
        num_hosts: How many processes there are, one on each host.
        devices_per_host: Virtual CPU devices of each; None where hosts have accelerators.
        resources_per_host: What Ray reserves for each, as `{"GPU": 8}`; one CPU if nothing is said.
        env_vars: Environment variables of each, beside those that Meshwise sets.
    """

    num_hosts: int
    devices_per_host: int | None = None
    resources_per_host: Mapping[str, float] | None = None
    env_vars: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        sizes = {"hosts": self.num_hosts, "devices_per_host": self.devices_per_host}
        for name, value in sizes.items():
            if value is not None and (not isinstance(value, int) or value < 1):
                raise LaunchError(f"{name}={value!r} must be a whole number of at least 1")
        for name, value in self.resources.items():
            if not isinstance(value, int | float) or value < 0:
                raise LaunchError(
                    f"resources_per_host: {name}={value!r} must be a number of at least 0"
                )
        if not any(self.resources.values()):
            raise LaunchError(f"resources_per_host={self.resources_per_host!r} reserves nothing")
        for name, value in self.env_vars.items():
            if not isinstance(value, str):
                raise LaunchError(f"env_vars: {name}={value!r} must be a text")
        if self.devices_per_host is None and self.accelerator is None:
            raise LaunchError(
                "a host needs devices: say devices_per_host=2 for virtual CPU devices, or "
                "resources_per_host={'GPU': 8} for accelerators"
            )

    @property
    def accelerator(self) -> str | None:
        """The accelerators of the hosts, as Ray calls them; None for virtual CPU devices."""
        if self.devices_per_host is not None:
            return None
        return next((name for name in _PLATFORMS if self.resources.get(name)), None)

    @property
    def resources(self) -> dict[str, float]:
        """What Ray reserves for each host."""
        return {"CPU": 1.0, **(self.resources_per_host or {})}

    @property
    def strategy(self) -> Literal["SPREAD", "STRICT_SPREAD"]:
        """How the hosts lie on nodes of Ray: apart, which virtual devices need not."""
        return "SPREAD" if self.accelerator is None else "STRICT_SPREAD"

    def variables(self) -> dict[str, str]:
        """Return the environment variables that each process has before Python starts."""
        if self.accelerator is not None:
            own = {"JAX_PLATFORMS": _PLATFORMS[self.accelerator]}
        else:
            devices = self.devices_per_host or 1
            own = {
                "JAX_PLATFORMS": "cpu",
                "JAX_NUM_CPU_DEVICES": str(devices),
                **thread_variables(devices, int(self.resources["CPU"])),
            }
        return own | dict(self.env_vars)
