"""A relay of TCP connections that holds up what passes, at random: a poor network."""

from __future__ import annotations

import random
import socket
import threading
import time

_LARGEST = 2**16


class Relay:
    """Listens at an address of its own and passes on to another one, both ways, late."""

    def __init__(self, to: str, *, seed: int, mean_delay_s: float = 0.003) -> None:
        """Listen.

        Args:
            to: `host:port` that it passes on to.
            seed: Decides the delays.
            mean_delay_s: How long what was read is held up on average.
        """
        self._to, self._rng, self._mean_delay_s = to, random.Random(seed), mean_delay_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.num_delays = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            host, _, port = self._to.rpartition(":")
            far = socket.create_connection((host, int(port)))
            for source, sink in ((near, far), (far, near)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(_LARGEST):
                time.sleep(self._rng.expovariate(1 / self._mean_delay_s))
                self.num_delays += 1
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:  # One side is gone.
            source.close()
            sink.close()
