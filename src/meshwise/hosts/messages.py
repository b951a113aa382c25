"""Messages between the processes of a roll call: JSON and bytes, each within a time limit."""

from __future__ import annotations

import json
import socket
import struct
import time
from contextlib import suppress
from typing import Self, cast

Message = dict[str, object]

# A mark and the length of the JSON that follows.
_HEAD = struct.Struct("<8sI")
_MARK = b"meshwise"
_MOST_BYTES = 2**24
_CHUNK_BYTES = 2**18


class StrangerError(OSError):
    """Who answers is no process of a roll call."""


class Channel:
    """A connection to one process; each call ends within its time limit."""

    def __init__(self, connection: socket.socket) -> None:
        """Take a connection.

        Args:
            connection: The socket; it is closed with the channel.
        """
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection

    def __enter__(self) -> Self:
        """Return the channel itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the connection."""
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def send(self, message: Message, *, limit_s: float) -> None:
        """Send a message.

        Args:
            message: What JSON can hold.
            limit_s: Seconds that this may take.

        Raises:
            OSError: the connection is broken, or too slow.
        """
        data = json.dumps(message).encode()
        self._socket.settimeout(limit_s)
        self._socket.sendall(_HEAD.pack(_MARK, len(data)) + data)

    def receive(self, *, limit_s: float) -> Message:
        """Wait for the next message.

        Args:
            limit_s: Seconds that this may take.

        Returns:
            The message.

        Raises:
            StrangerError: what comes is no message.
            OSError: the connection is broken, or nothing came in time.
        """
        deadline = time.monotonic() + limit_s
        mark, length = _HEAD.unpack(self._bytes(_HEAD.size, deadline))
        if mark != _MARK or length > _MOST_BYTES:
            raise StrangerError("this is no process of Meshwise")
        try:
            message: object = json.loads(self._bytes(length, deadline))
        except ValueError as error:
            raise StrangerError("this is no message of Meshwise") from error
        if not isinstance(message, dict):
            raise StrangerError("this is no message of Meshwise")
        return cast(Message, message)

    def send_bytes(self, count: int, *, limit_s: float) -> None:
        """Send bytes without a meaning.

        Args:
            count: How many.
            limit_s: Seconds that this may take.

        Raises:
            OSError: the connection is broken, or too slow.
        """
        self._socket.settimeout(limit_s)
        self._socket.sendall(bytes(count))

    def skip_bytes(self, count: int, *, limit_s: float) -> None:
        """Receive bytes and forget them.

        Args:
            count: How many.
            limit_s: Seconds that this may take.

        Raises:
            OSError: the connection is broken, or too slow.
        """
        deadline = time.monotonic() + limit_s
        while count:
            count -= len(self._part(min(count, _CHUNK_BYTES), deadline))

    def wait_for_close(self, *, limit_s: float) -> None:
        """Wait until the other process closes the connection.

        Args:
            limit_s: Seconds that this waits at most.
        """
        with suppress(OSError):
            self._part(1, time.monotonic() + limit_s)

    def _bytes(self, count: int, deadline: float) -> bytes:
        parts: list[bytes] = []
        while count:
            parts.append(self._part(count, deadline))
            count -= len(parts[-1])
        return b"".join(parts)

    def _part(self, most: int, deadline: float) -> bytes:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(left)
        part = self._socket.recv(most)
        if not part:
            raise ConnectionResetError("the other process closed the connection")
        return part
