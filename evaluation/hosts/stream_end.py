"""One end of a TCP stream: `receive ADDRESS` prints its port, `send ADDRESS PORT BYTES` seconds.

It runs as a script on a host, and imports nothing of Meshwise.
"""

from __future__ import annotations

import socket
import sys
import time

# So much is handed to the kernel at once.
_PIECE_BYTES = 1 << 20
_HEAD_BYTES = 8


def receive(address: str) -> None:
    """Receive what one connection sends, and answer each transfer with a byte.

    Args:
        address: Where to listen.
    """
    with socket.create_server((address, 0)) as server:
        print(server.getsockname()[1], flush=True)  # noqa: T201 (the other end reads it)
        connection, _ = server.accept()
    piece = bytearray(_PIECE_BYTES)
    with connection:
        while len(head := connection.recv(_HEAD_BYTES, socket.MSG_WAITALL)) == _HEAD_BYTES:
            left = int.from_bytes(head, "little")
            while left:
                count = connection.recv_into(piece, min(left, len(piece)))
                if count == 0:
                    return
                left -= count
            connection.sendall(b".")


def send(address: str, port: int, num_bytes: int) -> None:
    """Send an empty transfer, and then one that is timed until its answer is here.

    Args:
        address: Where the other end listens.
        port: Its port.
        num_bytes: What to send.
    """
    piece = memoryview(bytes(min(num_bytes, _PIECE_BYTES)))
    with socket.create_connection((address, port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(bytes(_HEAD_BYTES))
        connection.recv(1)
        started_s = time.perf_counter()
        connection.sendall(num_bytes.to_bytes(_HEAD_BYTES, "little"))
        for first in range(0, num_bytes, _PIECE_BYTES):
            connection.sendall(piece[: num_bytes - first])
        if connection.recv(1) != b".":
            raise ConnectionError("the receiver has ended")
        print(time.perf_counter() - started_s, flush=True)  # noqa: T201 (who started it reads it)


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(sys.argv[2])
    else:
        send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
