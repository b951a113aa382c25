"""Whether each process of a roll call reaches every other one, as gloo and NCCL will need it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import repeat
from typing import Self

from meshwise.hosts.card import Card

_MOST_THREADS = 32
_LOOK_S = 0.2


class Door:
    """A port of this process that answers each connection with a token, until it is closed."""

    def __init__(self) -> None:
        """Open the port; it answers once `answer` was called."""
        self._server = dual_server(0)
        self.port = int(self._server.getsockname()[1])
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Return the door itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the port."""
        self._is_closed.set()
        if self._thread is not None:
            self._thread.join()
        self._server.close()

    def answer(self, token: str) -> None:
        """Answer connections from now on, in a thread.

        Args:
            token: The answer.
        """
        self._thread = threading.Thread(target=self._serve, args=(token.encode(),), daemon=True)
        self._thread.start()

    def _serve(self, token: bytes) -> None:
        self._server.settimeout(_LOOK_S)
        while not self._is_closed.is_set():
            with suppress(OSError):
                connection, _ = self._server.accept()
                with connection:
                    connection.settimeout(_LOOK_S)
                    connection.sendall(token)


def dual_server(port: int) -> socket.socket:
    """Open a port of this machine on all its addresses, of IPv4 and IPv6 where there are both.

    Args:
        port: The port; 0 for a free one.

    Returns:
        The listening socket.

    Raises:
        OSError: the port is in use.
    """
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def unreached(cards: Sequence[Card], *, limit_s: float) -> list[str]:
    """Connect to processes at the addresses of their cards.

    Args:
        cards: The processes.
        limit_s: Seconds that each connection may take.

    Returns:
        The tokens of those that did not answer with their token.
    """
    with ThreadPoolExecutor(max_workers=_MOST_THREADS) as pool:
        answers = pool.map(_is_reached, cards, repeat(limit_s))
        return [
            card.token for card, is_reached in zip(cards, answers, strict=True) if not is_reached
        ]


def _is_reached(card: Card, limit_s: float) -> bool:
    if not card.address:
        return False
    wanted = card.token.encode()
    try:
        with socket.create_connection((card.address, card.port), timeout=limit_s) as connection:
            seen = b""
            while len(seen) < len(wanted) and (part := connection.recv(len(wanted))):
                seen += part
    except OSError:
        return False
    return seen == wanted
