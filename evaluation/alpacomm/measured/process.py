"""What runs on each host: `process.py SETTINGS` sends all transfers and says what they took.

Process 0 prints a line `measured {...}` for each, in JSON, with the fields of
`results.Measured`.  All processes are of one machine, so they have one clock.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from evaluation.alpacomm.cases import FLOAT32_BYTES, ONE_TO_MANY, Case
from evaluation.alpacomm.measured.results import PREFIX, Measured, MeasuredRun
from evaluation.alpacomm.measured.transfers import num_hosts, sized_case, transfers
from meshwise.graph.layout import Layout
from meshwise.resharding.cross_mesh.sending import Sending
from meshwise.runtime.devices import array_of
from meshwise.runtime.job.job import Job, current_job
from meshwise.runtime.transports.sockets import SocketTransport
from meshwise.runtime.transports.tile_copier import TileCopier
from meshwise.runtime.transports.transport import Passage

# All processes begin at once, so long after they agreed on it.
_LEAD_S = 0.1
_COUNTERS = Path("/sys/class/net/eth0/statistics")


class CountingTransport:
    """Sockets that count the payload that they send; what signals send is apart."""

    def __init__(self, job: Job) -> None:
        """Begin with nothing.

        Args:
            job: The processes.
        """
        self._inner = SocketTransport(job)
        self.payload_bytes: Counter[int] = Counter()
        self.signals = 0

    @property
    def process(self) -> int:
        """The number of this process."""
        return self._inner.process

    @property
    def is_collective(self) -> bool:
        """False, as sockets."""
        return self._inner.is_collective

    def pass_all(self, passages: Sequence[Passage], label: str) -> list[Array | None]:
        """Count what this process sends, and send it."""
        for each in passages:
            if each.value is not None:
                # No piece of these cases is a single number.
                if each.value.size == 1:
                    self.signals += 1
                else:
                    self.payload_bytes[each.destination.process_index] += each.value.nbytes
        return self._inner.pass_all(passages, label)

    def check(self) -> None:
        """Look whether something went wrong."""
        self._inner.check()

    def abandon(self, error: BaseException) -> None:
        """Refuse what comes after a failure."""
        self._inner.abandon(error)


class Meter:
    """Sends arrays in a process of the job, and says what it took."""

    def __init__(self, job: Job) -> None:
        """Nothing is sent yet.

        Args:
            job: The processes, one on each host.
        """
        self._job = job
        self._transport = CountingTransport(job)
        self._copier = TileCopier(self._transport)
        devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
        self._devices = {
            host: [d for d in devices if d.process_index == host]
            for host in range(job.num_processes)
        }

    def measure(
        self, case: Case, way: str, sending: Sending | None, repeats: int
    ) -> tuple[Measured, bool]:
        """Send a case several times, and once before that is not counted.

        Args:
            case: The case.
            way: How it is sent, for the result.
            sending: The same for the copier; None: each tile crosses once.
            repeats: How often it is measured.

        Returns:
            The result, and whether this process saw the right values.
        """
        source = self._sharding(case.source, 0, case.before, case.shape)
        destination = self._sharding(case.destination, case.source[0], case.after, case.shape)
        whole = np.arange(np.prod(case.shape), dtype=np.float32).reshape(case.shape)
        here = source.addressable_devices_indices_map(case.shape).items()
        parts = [jax.device_put(whole[index], device) for device, index in here]
        spec = jax.ShapeDtypeStruct(case.shape, np.float32, sharding=source)
        value = array_of(spec, parts)
        takes_part = self._job.process < num_hosts(case)
        seconds: list[float] = []
        is_right = True
        traffic: list[tuple[int, int]] = []
        payload: Counter[int] = Counter()
        for n in range(repeats + 1):
            self._transport.payload_bytes.clear()
            self._transport.signals = 0
            before = _traffic()
            label = f"case {case.name}, {way}, {n}"
            start_s = float(
                self._job.from_first(f"the start of {label}", lambda: _text(_now_s() + _LEAD_S))
            )
            time.sleep(max(start_s - _now_s(), 0))
            found: Array | None = None
            if takes_part:
                found = self._copier.put(
                    value, destination, sending=sending, label=label, is_overwritten=False
                )
                jax.block_until_ready([shard.data for shard in found.addressable_shards])
            ends = self._job.exchange(f"the end of {label}", _text(_now_s()))
            seconds.append(max(map(float, ends)) - start_s)
            traffic = [
                (a - b, c - d)
                for (a, c), (b, d) in zip([_traffic()], [before], strict=True)
            ]
            payload = self._transport.payload_bytes
            if n == 0 and found is not None:
                is_right = all(
                    np.array_equal(np.asarray(shard.data), whole[shard.index])
                    for shard in found.addressable_shards
                )
        return self._gathered(case, way, seconds[1:], payload, traffic, is_right)
