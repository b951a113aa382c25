"""`calibrate --hosts`: the hosts of a job and the network between them, as a cluster."""

from __future__ import annotations

import json
import socket
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import cast

import jax

from meshwise.calibrate.clock import Repetition, seconds_a_turn
from meshwise.calibrate.measure import Report, Sizes, calibrate
from meshwise.calibrate.network import PairPoint, agreed_clock, measured_pairs
from meshwise.calibrate.programs import collective_loop
from meshwise.cluster.collectives import ALL_GATHER, ALL_REDUCE, collective_time_s
from meshwise.cluster.description.host_table import host_of, host_table
from meshwise.cluster.description.profile import CollectivePoint
from meshwise.cluster.host import HostGroup, HostSpec, Link
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import ClusterError
from meshwise.runtime.device_memory import device_memory_bytes, host_memory_bytes
from meshwise.runtime.devices import Device
from meshwise.runtime.job.job import Job
from meshwise.runtime.transports.choice import transport_of
from meshwise.units import bytes_text, counted

# A host whose network takes so much longer than that of the others is named.
_SLOW = 1.25
# Of tensors over all devices, whose collectives are compared with what the cluster predicts.
_COLLECTIVE_BYTES = (2**14, 2**18, 2**21)
_EFFORT = Repetition(repeats=3, run_s=0.1, max_turns=256)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedHosts:
    """The hosts of a job, as they were measured.

    Attributes:
        cluster: The cluster that plans use.
        pairs: What passes between each two hosts.
        collectives: Collectives over all devices of all hosts: measured, and the seconds that the
            cluster predicts.
        notes: What the user should know.
    """

    cluster: ClusterSpec
    pairs: tuple[PairPoint, ...]
    collectives: tuple[tuple[CollectivePoint, float], ...]
    notes: tuple[str, ...]


def calibrate_hosts(
    job: Job,
    *,
    command: str,
    sizes: Sizes | None = None,
    memory_bytes: int | None = None,
    report: Report | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> CalibratedHosts:
    """Measure the devices of all processes of a job, and what passes between hosts.

    All hosts work at the same time, so that those which share a machine are measured with their
    share.  All processes call it.

    Args:
        job: The processes.
        command: The command that was called.
        sizes: What to measure on each host; by default what suits the platform.
        memory_bytes: Memory of one device, where JAX does not say it.
        report: Is told of every measurement on this process's host.
        say: Is told what is measured between hosts.

    Raises:
        ClusterError: nobody says how much memory a device has, hosts have different numbers of
            devices, or processes of one machine do not follow each other.
        TransportError: nothing passes between two processes.
    """
    machines = job.exchange("the name of its machine", socket.gethostname())
    hosts = hosts_of(cast("list[Device]", jax.devices()), machines)
    mine = next(host for host in hosts if any(d.process_index == job.process for d in host))
    counts = {len(host) for host in hosts}
    if len(counts) > 1:
        raise ClusterError(
            f"hosts have {', '.join(map(str, sorted(counts)))} devices: what all measure together "
            "needs equal numbers; calibrate hosts of each kind by themselves, and join them in a "
            "cluster file"
        )
    if memory_bytes is None:
        here = {n for n, name in enumerate(machines) if name == machines[job.process]}
        sharing = sum(len(host) for host in hosts if host[0].process_index in here)
        memory_bytes = memory_of_one(cast("list[Device]", jax.local_devices()), sharing)
    now = agreed_clock(job)
    profile = calibrate(
        mine, command=command, sizes=sizes, memory_bytes=memory_bytes, report=report, now=now
    )
    pairs = measured_pairs(job, hosts, transport_of(job), say)
    told = json.dumps(host_table(profile.host))
    # The processes of one host say the same of it.
    texts = job.exchange("the profile of its host", told)
    specs = [host_of(json.loads(texts[host[0].process_index]), "profile") for host in hosts]
    cluster = cluster_of_hosts(specs, pairs)
    collectives = tuple(_over_hosts(cluster, hosts, now, say))
    return CalibratedHosts(
        cluster=cluster, pairs=pairs, collectives=collectives, notes=tuple(_notes(hosts, pairs))
    )


def memory_of_one(own: Sequence[Device], num_sharing: int) -> int | None:
    """Return the bytes of one device; None if JAX does not say it.

    Args:
        own: Devices of this process: JAX says it of no others.
        num_sharing: Virtual CPU devices that share the memory of this machine.
    """
    if own[0].platform == "cpu":
        return host_memory_bytes() // num_sharing
    return device_memory_bytes(own)


def hosts_of(devices: Sequence[Device], machines: Sequence[str]) -> list[list[Device]]:
    """Return the devices of each host: of a process for CPUs, of a machine for others.

    Args:
        devices: Those of all processes.
        machines: For each process the name of its machine.

    Raises:
        ClusterError: processes of one machine do not follow each other.
    """

    def host(device: Device) -> str:
        number = device.process_index
        return str(number) if device.platform == "cpu" else machines[number]

    found: dict[str, list[Device]] = {}
    for name, some in groupby(devices, host):
        if name in found:
            raise ClusterError(
                f"processes of machine {name!r} have numbers with those of other machines between "
                "them; start them so that those of one machine follow each other"
            )
        found[name] = list(some)
    return list(found.values())


def cluster_of_hosts(hosts: Sequence[HostSpec], pairs: Sequence[PairPoint]) -> ClusterSpec:
    """Return the cluster of measured hosts.

    Hosts with equal devices are one kind, with the numbers of the one in the middle by its rate of
    products, so that a plan does not take noise for a difference, and with the least memory; the
    network is that of the median pair, as fast as both ways at once are.

    Args:
        hosts: What was measured of each, without its network.
        pairs: What passes between each two; none for one host.
    """
    network = _network(hosts[0], pairs)
    kinds: dict[tuple[str, int], list[HostSpec]] = {}
    for host in hosts:
        kinds.setdefault((host.device.name, host.num_devices), []).append(host)
    chosen = {kind: network(_middle(some)) for kind, some in kinds.items()}
    in_order = [chosen[host.device.name, host.num_devices] for host in hosts]
    groups = [list(some) for _, some in groupby(in_order)]
    name = " + ".join(f"{counted(len(some), 'host')} of {some[0].name}" for some in groups)
    found = tuple(HostGroup(count=len(some), host=some[0]) for some in groups)
    return ClusterSpec(name=f"{name}, measured", groups=found)


def _middle(hosts: Sequence[HostSpec]) -> HostSpec:
    """Return the host with the median rate of float32 products, and the least memory of all."""
    ordered = sorted(hosts, key=lambda host: host.device.rate("float32"))
    middle = ordered[(len(ordered) - 1) // 2]
    memory_bytes = min(host.device.memory_bytes for host in hosts)
    return replace(middle, device=replace(middle.device, memory_bytes=memory_bytes))


def _network(host: HostSpec, pairs: Sequence[PairPoint]) -> Callable[[HostSpec], HostSpec]:
    """Return what gives a host its network."""
    if not pairs:
        return lambda host: host
    both = statistics.median(p.both_ways_bytes_per_s for p in pairs)
    latency_s = statistics.median(p.latency_s for p in pairs)
    ways = statistics.median(p.one_way_bytes_per_s / p.one_device_bytes_per_s for p in pairs)
    count = min(max(round(ways), 1), host.num_devices)
    nic = Link(latency_s=latency_s, bytes_per_s=both / count)

    def with_network(host: HostSpec) -> HostSpec:
        source = f"{host.source.split(';')[0]}; network: median of {len(pairs)} pairs of hosts"
        return replace(host, nic=nic, num_nics=count, source=source)

    return with_network


def _over_hosts(
    cluster: ClusterSpec,
    hosts: Sequence[Sequence[Device]],
    now: Callable[[], float],
    say: Callable[[str], object],
) -> Iterator[tuple[CollectivePoint, float]]:
    """Yield collectives over all devices, and what the cluster predicts of them."""
    devices = [device for host in hosts for device in host]
    count = len(devices)
    if len(hosts) == 1 or cluster.is_mixed:
        return
    mesh = cluster.mesh((count,))
    for kind in (ALL_REDUCE, ALL_GATHER):
        for wanted in _COLLECTIVE_BYTES:
            unit = 4 * count * count
            num_bytes = max(wanted // unit, 1) * unit
            say(f"{kind} of {bytes_text(num_bytes)} over all {count} devices")
            loop = collective_loop(devices, kind, count, num_bytes)
            seconds = seconds_a_turn(loop, _EFFORT, now)
            point = CollectivePoint(
                kind=kind, group_size=count, num_bytes=num_bytes, seconds=seconds
            )
            yield point, collective_time_s(kind, (0,), num_bytes, mesh)


def _notes(hosts: Sequence[Sequence[Device]], pairs: Sequence[PairPoint]) -> Iterator[str]:
    """Yield which hosts are slow."""
    if len(hosts) < 3:
        return
    rates = [
        statistics.median(p.both_ways_bytes_per_s for p in pairs if n in (p.first, p.second))
        for n in range(len(hosts))
    ]
    middle = statistics.median(rates)
    for number, rate in enumerate(rates):
        if rate * _SLOW < middle:
            yield (
                f"host {number} sends and receives {bytes_text(rate)}/s, the others "
                f"{bytes_text(middle)}/s: its link is slow"
            )
