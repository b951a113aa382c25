"""One process of a job that sends arrays between processes by each strategy."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from hosts.joined import join
from meshwise.resharding.cross_mesh.host_tasks import host_task
from meshwise.resharding.cross_mesh.sending import Sending
from meshwise.resharding.cross_mesh.strategies import SEND_RECV, STRATEGIES
from meshwise.resharding.cross_mesh.unit_tasks import unit_tasks
from meshwise.resharding.tiles import Box
from meshwise.runtime.devices import array_of
from meshwise.runtime.job.job import Job, current_job
from meshwise.runtime.transports.sockets import SocketTransport
from meshwise.runtime.transports.tile_copier import TileCopier
from meshwise.runtime.transports.transport import Passage, Transport

SHAPE = (48, 96)
# The first device and the sizes of both meshes, and how the array lies there; two devices are of
# one process.
CASES = (
    (0, (1, 2), P(None, "y"), 2, (2, 2), P()),
    (0, (2, 2), P("x"), 2, (2, 2), P(None, "x")),
    (0, (2, 1), P("x"), 1, (5, 1), P()),
)


class Counting:
    """A transport that counts the elements that it passes on; signals, of one element, apart."""

    def __init__(self, inner: Transport) -> None:
        """Begin with nothing.

        Args:
            inner: Passes them on.
        """
        self.inner, self.process = inner, inner.process
        self.counts: Counter[str] = Counter()

    @property
    def is_collective(self) -> bool:
        return self.inner.is_collective

    def abandon(self, error: BaseException) -> None:
        self.inner.abandon(error)

    def pass_all(self, passages: Sequence[Passage], label: str) -> list[Array | None]:
        """Count what this process sends."""
        for each in passages:
            size = int(np.prod(each.shape))
            if each.value is not None and size > 1:
                self.counts[str(each.destination.process_index)] += size
        return self.inner.pass_all(passages, label)

    def check(self) -> None:
        """Look whether something went wrong."""
        self.inner.check()


def expected(source: NamedSharding, destination: NamedSharding, strategy: str) -> dict[str, int]:
    """Return the elements that each process receives, by the closed forms."""
    devices = sorted(source.device_set | destination.device_set, key=lambda d: d.id)
    hosts = [device.process_index for device in devices]
    sides = [_boxes(sharding, devices) for sharding in (source, destination)]
    found: Counter[str] = Counter()
    for unit in unit_tasks(*sides):
        task = host_task(unit, hosts, 1)
        for host, count in zip(task.receivers, task.devices, strict=True) if task else ():
            found[str(host)] += int(task.num_bytes) * (count if strategy == SEND_RECV else 1)
    return dict(found)


def _boxes(sharding: NamedSharding, devices: Sequence[Any]) -> dict[int, Box]:
    return {
        devices.index(device): tuple(
            part.indices(size)[:2] for part, size in zip(index, SHAPE, strict=True)
        )
        for device, index in sharding.devices_indices_map(SHAPE).items()
    }


def check(job: Job) -> int:
    """Send arrays by all strategies; return how many were right."""
    transport = Counting(SocketTransport(job))
    copier = TileCopier(transport)
    whole = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
    passed = 0
    for first, sizes, before, then, there, after in CASES:
        source, destination = (
            NamedSharding(Mesh(np.array(_devices(n, at)).reshape(at), ("x", "y")), spec)
            for n, at, spec in ((first, sizes, before), (then, there, after))
        )
        mine = source.addressable_devices_indices_map(SHAPE).items()
        parts = [jax.device_put(whole[index], device) for device, index in mine]
        spec = jax.ShapeDtypeStruct(SHAPE, np.float32, sharding=source)
        value = array_of(spec, parts)
        for strategy in STRATEGIES:
            transport.counts.clear()
            sending = Sending(strategy=strategy, bytes_per_s=1e6, chunk_s=1e-3)
            found = copier.put(value, destination, sending=sending)
            for shard in found.addressable_shards:
                np.testing.assert_array_equal(np.asarray(shard.data), whole[shard.index])
            counts = map(json.loads, job.exchange("counts", json.dumps(transport.counts)))
            received: Counter[str] = sum(map(Counter, counts), Counter())
            assert received == expected(source, destination, strategy), (strategy, received)
            passed += 1
    return passed


def _devices(first: int, sizes: tuple[int, int]) -> list[Any]:
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    return devices[first : first + sizes[0] * sizes[1]]


if __name__ == "__main__":
    join()
    found = current_job()
    assert found is not None
    print("passed", check(found), flush=True)  # noqa: T201 (for the test that reads it)
    jax.distributed.shutdown()
