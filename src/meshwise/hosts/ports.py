"""Ports of this machine that nobody uses."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from meshwise.errors import LaunchError

LOOPBACK = "127.0.0.1"


def free_ports(count: int, *, address: str = LOOPBACK) -> list[int]:
    """Return distinct ports that are free now.

    Args:
        count: How many.
        address: Where they are free; "" for all addresses of this machine.

    Raises:
        LaunchError: there are not so many.
    """
    with ExitStack() as stack:
        try:
            # All are open at once, so that no port comes twice.
            servers = [
                stack.enter_context(socket.create_server((address, 0))) for _ in range(count)
            ]
        except OSError as error:
            raise LaunchError(f"cannot get {count} free ports: {error.strerror}") from error
        return [int(server.getsockname()[1]) for server in servers]


def check_free(port: int) -> None:
    """Refuse a port that is in use.

    JAX does not find this by itself: its server shares the port of another such server, and the
    process crashes where the port is that of another program.

    Args:
        port: The port.

    Raises:
        LaunchError: the port is in use, or this user may not use it.
    """
    for address in (LOOPBACK, ""):
        try:
            socket.create_server((address, port)).close()
        except PermissionError as error:
            raise LaunchError(
                f"this user may not open port {port}; ports from 1024 on are for everybody"
            ) from error
        except OSError as error:
            raise LaunchError(
                f"port {port} is in use; leave --port out to take a free one"
            ) from error
