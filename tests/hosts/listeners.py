"""What a process listens on, as Linux tells it; no package is needed."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from pathlib import Path
from typing import NamedTuple

_LISTEN = "0A"


class Listening(NamedTuple):
    """A socket that takes connections.

    Attributes:
        address: Where; `0.0.0.0` or `::` for every address of the machine.
        port: Its port.
    """

    address: str
    port: int


def listening_of(pid: int) -> set[Listening]:
    """Return all TCP sockets on which a process listens.

    Args:
        pid: Its number; of the same user, in the same network.
    """
    own = _sockets_of(pid)
    found: set[Listening] = set()
    for name in ("tcp", "tcp6"):
        lines = Path(f"/proc/{pid}/net/{name}").read_text(encoding="ascii").splitlines()[1:]
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and fields[9] in own:
                found.add(_place(fields[1]))
    return found


def _sockets_of(pid: int) -> set[str]:
    """Return the numbers of all sockets that a process has open."""
    found: set[str] = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(link)
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            found.add(target[len("socket:[") : -1])
    return found


def _place(text: str) -> Listening:
    """Return what `0100007F:1F90` says: words of an address in the order of this machine."""
    address, port = text.split(":")
    words = [int(address[k : k + 8], 16) for k in range(0, len(address), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    plain = socket.inet_ntop(family, packed)
    mapped = ipaddress.ip_address(plain)
    if isinstance(mapped, ipaddress.IPv6Address) and mapped.ipv4_mapped is not None:
        plain = str(mapped.ipv4_mapped)
    return Listening(plain, int(port, 16))
