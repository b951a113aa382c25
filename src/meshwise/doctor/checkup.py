"""All checks, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Iterable

from meshwise.doctor.finding import Finding
from meshwise.doctor.jax_probe import ask_both, check_devices, check_virtual
from meshwise.doctor.machine import (
    check_accelerator,
    check_cores,
    check_jax_cache,
    check_kernels,
    check_memory,
    check_records,
)
from meshwise.doctor.packages import check_packages, check_python


def checkup(compilers: Iterable[Finding] = ()) -> tuple[Finding, ...]:
    """Return everything that this installation sees and what is wrong with it.

    Args:
        compilers: What is known of the compilers of devices that are not here.
    """
    own, virtual = ask_both()
    platform = None if own.data is None else str(own.data["platform"])
    accelerator = check_accelerator(platform)
    return (
        check_python(),
        *check_packages(),
        *compilers,
        check_devices(own),
        check_virtual(virtual),
        *(() if accelerator is None else (accelerator,)),
        check_cores(),
        check_memory(),
        *check_kernels(),
        check_records(),
        check_jax_cache(),
    )
