"""Whether JAX works, asked of another process, so that what hangs or crashes can be reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict, cast

from meshwise.doctor.finding import Finding
from meshwise.units import bytes_text

_PROBE = (sys.executable, "-m", "meshwise.runtime.probe")
_LIMIT_S = 120.0
_VIRTUAL = 8
_LAST_LINES = 3


class SeenDevices(TypedDict):
    """What a probe says of the devices."""

    platform: str
    kinds: dict[str, int]
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswer:
    """What a probe said.

    Attributes:
        data: Its findings; None if it failed.
        failure: Why.
    """

    data: SeenDevices | None
    failure: str = ""


def ask(
    arguments: Sequence[str] = (),
    *,
    command: Sequence[str] = _PROBE,
    limit_s: float = _LIMIT_S,
    environment: Mapping[str, str] | None = None,
) -> ProbeAnswer:
    """Run a probe and read the JSON in the last line of what it says.

    Args:
        arguments: Arguments of the probe.
        command: The probe.
        limit_s: Seconds after which it is ended.
        environment: Its environment variables; those of this process by default.
    """
    settings = dict(os.environ if environment is None else environment)
    try:
        done = subprocess.run(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            env=settings,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ProbeAnswer(data=None, failure=f"no answer within {limit_s:.0f} s")
    except OSError as error:
        return ProbeAnswer(data=None, failure=f"cannot start {command[0]}: {error.strerror}")
    lines = done.stdout.strip().splitlines()
    try:
        data: object = json.loads(lines[-1]) if lines and done.returncode == 0 else None
    except ValueError:
        data = None
    if isinstance(data, dict):
        return ProbeAnswer(data=cast(SeenDevices, data))
    said = [line for line in done.stderr.strip().splitlines() if line.strip()][-_LAST_LINES:]
    reason = " / ".join(line.strip() for line in said) or "it said nothing"
    return ProbeAnswer(data=None, failure=f"exit code {done.returncode}: {reason}")


def check_devices(answer: ProbeAnswer) -> Finding:
    """Return what is found of the devices that JAX sees by itself.

    Args:
        answer: What the probe said.
    """
    if answer.data is None:
        return Finding(
            what="JAX devices",
            status="broken",
            found=answer.failure,
            remedy="check JAX_PLATFORMS and the driver; JAX_PLATFORMS=cpu runs on the CPU; "
            '`python -c "import jax; print(jax.devices())"` shows the same alone',
        )
    data = answer.data
    kinds = ", ".join(f"{count} x {kind}" for kind, count in data["kinds"].items())
    memory = data["memory_bytes"]
    size = f", {bytes_text(memory)} each" if memory else ""
    return Finding(what="JAX devices", status="ok", found=f"{data['platform']}: {kinds}{size}")


def check_virtual(answer: ProbeAnswer) -> Finding:
    """Return whether a collective runs on virtual CPU devices.

    Args:
        answer: What the probe said of them.
    """
    if answer.data is None:
        return Finding(
            what="virtual devices",
            status="broken",
            found=answer.failure,
            remedy="`make train` and the tests need them; unset XLA_FLAGS and "
            "JAX_NUM_CPU_DEVICES, and install jax and jaxlib of one version",
        )
    found = f"an all-reduce over {_VIRTUAL} virtual CPU devices is right"
    return Finding(what="virtual devices", status="ok", found=found)


def ask_both() -> tuple[ProbeAnswer, ProbeAnswer]:
    """Return what JAX sees by itself, and whether it runs virtual CPU devices."""
    return ask(), ask(["--virtual", str(_VIRTUAL)])
