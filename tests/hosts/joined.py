"""A process of a test's job joins the others."""

from __future__ import annotations

import sys

import jax

from doubles.processes import free_port
from oracle.problem import QUICK_OPTIONS


def join(*, quick: bool = True) -> list[str]:
    """Join the job that the command line names; return the rest of the command line.

    Args:
        quick: Whether programs are compiled in a fraction of the time, as `quick_steps` says.
    """
    address, count, number, devices, *rest = sys.argv[1:]
    jax.config.update("jax_num_cpu_devices", int(devices))
    # For `jax.device_put` between processes; `meshwise launch` does the same.
    jax.config.update("jax_cross_host_transfer_socket_address", f"127.0.0.1:{free_port()}")
    jax.config.update("jax_cross_host_transport_addresses", "127.0.0.1:0")
    if quick:
        jax.config.update("jax_disable_most_optimizations", True)
    jax.distributed.initialize(address, int(count), int(number), shutdown_timeout_seconds=20)
    if quick:
        import meshwise.spmd.program as lowering

        options = lowering.compile_options
        lowering.compile_options = lambda platform, n: options(platform, n) | dict(QUICK_OPTIONS)
    return rest
