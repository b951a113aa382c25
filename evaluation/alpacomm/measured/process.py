"""What runs on each host: `process.py SETTINGS` sends all transfers and says what they took.

Process 0 prints a line for each transfer, as `results.line_of` writes it.  All processes are of one
machine, so they have one clock.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from evaluation.alpacomm.cases import Case
from evaluation.alpacomm.measured.counting import CountingTransport
from evaluation.alpacomm.measured.results import PLAIN, Measured, line_of
from evaluation.alpacomm.measured.transfers import PLAIN_CASE, num_hosts, sized_case, transfers
from meshwise.errors import TransportError
from meshwise.graph.layout import Layout
from meshwise.resharding.cross_mesh.sending import Sending
from meshwise.runtime.devices import array_of
from meshwise.runtime.job.job import Job, current_job
from meshwise.runtime.transports.sockets import SocketTransport
from meshwise.runtime.transports.tile_copier import TileCopier

# All processes begin at once, so long after they agreed on it.
_LEAD_S = 0.1
_COUNTERS = Path("/sys/class/net/eth0/statistics")
_AXES = ("hosts", "devices")


class Meter:
    """Sends arrays in a process of the job, and says what it took."""

    def __init__(self, job: Job, repeats: int) -> None:
        """Nothing is sent yet.

        Args:
            job: The processes, one on each host.
            repeats: How often each transfer is measured, after once that is not.
        """
        self._job = job
        self._repeats = repeats
        self._transport = CountingTransport(SocketTransport(job))
        self._copier = TileCopier(self._transport)
        self._sent = 0

    def measure(self, case: Case, way: str, sending: Sending | None = None) -> Measured:
        """Send a case again and again.

        Args:
            case: The case.
            way: How it is sent, for the result.
            sending: The same for the copier; None: each tile crosses once.

        Returns:
            The result, in every process.

        Raises:
            TransportError: other values arrived than were sent.
        """
        source = _sharding(case.source, 0, case.before)
        destination = _sharding(case.destination, case.source[0], case.after)
        whole = np.arange(np.prod(case.shape), dtype=np.float32).reshape(case.shape)
        value = _placed(whole, source)
        found = self._once(case, value, destination, sending)[1]
        for shard in [] if found is None else found.addressable_shards:
            if not np.array_equal(np.asarray(shard.data), whole[shard.index]):
                raise TransportError(f"case {case.name}, {way}: {shard.device} has other values")
        self._transport.payload_bytes.clear()
        before = _traffic()
        seconds = [self._once(case, value, destination, sending)[0] for _ in range(self._repeats)]
        own = {
            "traffic": [b - a for a, b in zip(before, _traffic(), strict=True)],
            "payload": self._transport.payload_bytes,
        }
        told = self._job.exchange(f"what {way} sent", json.dumps(own))
        each = [json.loads(text) for text in told]
        received: Counter[int] = Counter()
        for one in each:
            received.update({int(host): count for host, count in one["payload"].items()})
        return Measured(
            case=case.name,
            way=way,
            seconds=tuple(seconds),
            received_bytes=tuple(received[host] for host in range(len(each))),
            sent_bytes=tuple(sum(one["payload"].values()) for one in each),
            counted_received=tuple(one["traffic"][0] for one in each),
            counted_sent=tuple(one["traffic"][1] for one in each),
        )

    def _once(
        self, case: Case, value: Array, destination: NamedSharding, sending: Sending | None
    ) -> tuple[float, Array | None]:
        """Send it once; return the seconds until all have it, and what this process got."""
        self._sent += 1
        label = f"transfer {self._sent}"
        begin = self._job.from_first(label, lambda: repr(time.monotonic() + _LEAD_S))
        time.sleep(max(float(begin) - time.monotonic(), 0.0))
        found: Array | None = None
        if self._job.process < num_hosts(case):
            arrived = self._copier.put(
                value, destination, sending=sending, label=label, is_overwritten=False
            )
            jax.block_until_ready([shard.data for shard in arrived.addressable_shards])
            found = arrived
        ends = self._job.exchange(f"the end of {label}", repr(time.monotonic()))
        return max(map(float, ends)) - float(begin), found


def _sharding(sizes: tuple[int, int], first_host: int, layout: Layout) -> NamedSharding:
    """Return the sharding of a layout on the first devices of some hosts."""
    hosts: dict[int, list[Any]] = {}
    for device in sorted(jax.devices(), key=lambda d: d.id):
        hosts.setdefault(device.process_index, []).append(device)
    devices = [hosts[first_host + n][: sizes[1]] for n in range(sizes[0])]
    spec = [tuple(_AXES[axis] for axis in axes) or None for axes in layout.dims]
    return NamedSharding(Mesh(np.array(devices), _AXES), PartitionSpec(*spec))


def _placed(whole: np.ndarray[Any, Any], sharding: NamedSharding) -> Array:
    """Return an array of which this process has its shards."""
    here = sharding.addressable_devices_indices_map(whole.shape).items()
    parts = [jax.device_put(whole[index], device) for device, index in here]
    jax.block_until_ready(parts)
    return array_of(jax.ShapeDtypeStruct(whole.shape, whole.dtype, sharding=sharding), parts)


def _traffic() -> list[int]:
    """Return the bytes that have come and gone through the interface of this host."""
    return [int((_COUNTERS / f"{way}_bytes").read_text()) for way in ("rx", "tx")]


def main(settings: dict[str, Any]) -> None:
    """Send everything.

    Args:
        settings: `cases`, `mib`, `strategies` as for `transfers`, and `repeats`.
    """
    jax.distributed.initialize()
    job = current_job()
    assert job is not None
    meter = Meter(job, settings["repeats"])

    def say(found: Measured) -> Measured:
        if job.process == 0:
            print(line_of(found), flush=True)  # noqa: T201 (who started it reads it)
        return found

    plain_case = sized_case(PLAIN_CASE, settings["mib"])
    plain = say(meter.measure(plain_case, PLAIN))
    rate = plain_case.num_bytes / plain.least_s
    for each in transfers(settings["cases"], settings["mib"], settings["strategies"]):
        sending = Sending(strategy=each.strategy, algorithm=each.algorithm, bytes_per_s=rate)
        say(meter.measure(each.case, each.way, sending))
    say(meter.measure(plain_case, PLAIN))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
