"""What the name of a machine resolves to.

Gloo, which carries JAX's collectives between CPUs, listens on the first address of its machine to
which the machine's own name resolves, and tells the others this address.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from meshwise.errors import LaunchError


def addresses_of(name: str) -> tuple[str, ...]:
    """Return the addresses to which a name resolves, in the order of the resolver.

    Args:
        name: The name of a machine.

    Returns:
        The addresses; none if the name does not resolve.
    """
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def is_loopback(address: str) -> bool:
    """Return whether an address only reaches the machine that uses it.

    Args:
        address: An IP address.
    """
    return ipaddress.ip_address(address).is_loopback


def own_address(addresses: Sequence[str]) -> str | None:
    """Return the first of some addresses that belongs to this machine, or None.

    Args:
        addresses: IP addresses.
    """
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind((address, 0))
        except OSError:
            continue
        return address
    return None


def check_own_name() -> None:
    """Refuse a machine whose name does not resolve to an address of its own.

    Raises:
        LaunchError: collectives between processes would not work.
    """
    name = socket.gethostname()
    found = addresses_of(name)
    if own_address(found) is None:
        seen = (
            f"resolves to {', '.join(found)}, not to this machine" if found else "does not resolve"
        )
        raise LaunchError(
            f"the name of this machine, {name!r}, {seen}: collectives between processes would "
            f'fail. Add the line "127.0.0.1 {name}" to /etc/hosts'
        )
