"""Hosts on one machine: network namespaces, joined by links of a set rate.

A host is a namespace with one interface `eth0`; a switch is a namespace with a bridge; each link is
a pair of interfaces with a token bucket at both ends. Links that lose or delay what they carry are
made by a program of their own (`poor_links`). The machine's own network has no part in it, so all
testbeds use the same addresses.

The hosts take what congestion control the machine has. With a namespace's default (here bbr), two
plain streams over one link get 200 and 198 of 400 Mbit/s, and 64 KiB beside a large stream take
7 ms (measured as below).
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Self

from evaluation.hosts.iproute import TestbedError, batch, iproute
from evaluation.hosts.leftovers import FILES, clean_leftovers, namespaces, remove
from evaluation.hosts.owner import prefix

_SERIALS = itertools.count()
# A process ends with this one, even where this one is killed.
_WITH_THIS = ("setpriv", "--pdeathsig", "KILL")
# Jumbo frames, as data centres have them: 99.4 % of what crosses a link is the stream.
_MTU_BYTES = 9000
# A bucket holds a frame, or what the timer of the kernel may be late. Measured (2-core VM, Linux
# 6.18, `plain_stream`): with these buckets transfers of 64 KiB to 32 MiB run at 0.97 to 1.07 of
# 200 Mbit/s to 4 Gbit/s; with 256 kB at 400 Mbit/s, 256 KiB seem to run at 6 Gbit/s.
_BUCKET_BYTES = 10_000
_BUCKET_S = 150e-6
# What waits longer in front of a link is dropped.
_QUEUE_S = 0.05
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


class Testbed:
    """Hosts that are there while the block runs; whatever happens in it, they are gone afterwards.

    SIGTERM ends the block as Ctrl-C does. What a killed process left is removed by the next
    testbed.
    """

    # pytest takes classes named Test... for tests.
    __test__ = False

    def __init__(
        self,
        hosts: int = 5,
        rate: str | Sequence[str] = "400mbit",
        delay_s: float = 0.0,
        jitter_s: float = 0.0,
        loss: float = 0.0,
    ) -> None:
        """Describe the hosts.

        Args:
            hosts: How many; at most 250.
            rate: What each link carries in each direction at once, as "400mbit" or "1gbit"; a
                sequence has one rate for each host.
            delay_s: What is added to each way between two hosts, half of it on each link.
            jitter_s: By how much the delay varies; packets may overtake each other.
            loss: Share of the packets that each link loses.

        Raises:
            TestbedError: a value makes no sense.
        """
        if not 1 <= hosts <= 250:
            raise TestbedError(f"a testbed has 1 to 250 hosts, not {hosts}")
        self.rates = (rate,) * hosts if isinstance(rate, str) else tuple(rate)
        if len(self.rates) != hosts:
            raise TestbedError(f"{hosts} hosts need as many rates, not {len(self.rates)}")
        if delay_s < 0 or jitter_s < 0 or (jitter_s and not delay_s):
            raise TestbedError(f"a jitter of {jitter_s} s does not go with a delay of {delay_s} s")
        if not 0 <= loss < 1:
            raise TestbedError(f"a link loses a share of 0 to 1 of its packets, not {loss}")
        self.links_bytes_per_s = tuple(map(_bytes_per_s, self.rates))
        self.delay_s = delay_s
        self.jitter_s = jitter_s
        self.loss = loss
        self.num_hosts = hosts
        self._prefix = prefix(next(_SERIALS))
        self._pid = os.getpid()
        self._processes: list[subprocess.Popen[str]] = []
        self._previous_handler: object = None

    def address(self, host: int) -> str:
        """Return the address of a host in the network of the testbed.

        Args:
            host: The number of the host.
        """
        return f"10.77.0.{self._checked(host) + 1}"

    def namespace(self, host: int) -> str:
        """Return the name of the namespace of a host, for `ip netns exec`.

        Args:
            host: The number of the host.
        """
        return f"{self._prefix}host{self._checked(host)}"

    def __enter__(self) -> Self:
        """Build the hosts.

        Raises:
            TestbedError: they cannot be built; `obstacle` says why before.
        """
        clean_leftovers()
        self._previous_handler = _end_at_sigterm()
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Kill what runs on the hosts, and remove them."""
        self._remove()

    def start(
        self,
        host: int,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        output: IO[str] | int | None = None,
    ) -> subprocess.Popen[str]:
        """Start a process on a host; it is killed when the block ends, with all it started.

        Call it in the main thread: the process also ends with the thread that started it.

        Args:
            host: The number of the host.
            argv: The program and its arguments.
            env: Its environment; that of this process if there is none.
            output: Where what it prints goes, errors too, as for `subprocess.Popen`.

        Returns:
            The process itself, not one that waits for it.
        """
        process = subprocess.Popen(
            [*_WITH_THIS, *("ip", "netns", "exec"), self.namespace(host), *argv],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    def run(
        self,
        host: int,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> str:
        """Run a process on a host to its end.

        Args:
            host: The number of the host.
            argv: The program and its arguments.
            env: Its environment; that of this process if there is none.
            timeout_s: After this time it is killed.

        Returns:
            What it printed, errors too.

        Raises:
            TestbedError: it failed, or took longer.
        """
        with self.start(host, argv, env, subprocess.PIPE) as process:
            try:
                printed, _ = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired as error:
                process.kill()
                printed, _ = process.communicate()
                message = f"{argv} on host {host} took longer than {timeout_s} s:\n{printed}"
                raise TestbedError(message) from error
        if process.returncode != 0:
            message = f"{argv} on host {host} ended with {process.returncode}:\n{printed}"
            raise TestbedError(message)
        return printed

    def traffic(self, host: int) -> tuple[int, int]:
        """Return what has crossed the link of a host so far, with the heads of all packets.

        Args:
            host: The number of the host.

        Returns:
            The bytes that it received, and those that it sent.
        """
        name = self.namespace(host)
        shown = iproute("ip", "-netns", name, "-json", "-stats", "link", "show", "eth0")
        counts = json.loads(shown)[0]["stats64"]
        return counts["rx"]["bytes"], counts["tx"]["bytes"]

    def cut(self, host: int) -> None:
        """Cut the link of a host: nothing gets through, and nobody is told.

        Args:
            host: The number of the host.
        """
        self._set_port(host, "down")

    def mend(self, host: int) -> None:
        """Mend the link of a host that was cut.

        Args:
            host: The number of the host.
        """
        self._set_port(host, "up")

    def _set_port(self, host: int, state: str) -> None:
        switch = f"{self._prefix}switch"
        iproute("ip", "-netns", switch, "link", "set", f"port{self._checked(host)}", state)

    def _checked(self, host: int) -> int:
        if not 0 <= host < self.num_hosts:
            raise TestbedError(f"hosts 0 to {self.num_hosts - 1} are there, not {host}")
        return host

    def _build(self) -> None:
        switch = f"{self._prefix}switch"
        iproute("ip", "netns", "add", switch)
        batch("ip", switch, [f"link add name bridge0 mtu {_MTU_BYTES} up type bridge"])
        names = [self.namespace(host) for host in range(self.num_hosts)]
        for host, name in enumerate(names):
            self._write_files(host)
            iproute("ip", "netns", "add", name)
        if self.loss or self.delay_s:
            self._make_poor_links()
        else:
            for host, name in enumerate(names):
                pair = f"link add port{host} type veth peer name eth0 netns {name}"
                batch("ip", switch, [pair])
        for host, name in enumerate(names):
            batch("ip", switch, [f"link set port{host} mtu {_MTU_BYTES} master bridge0 up"])
            own = [
                "link set lo up",
                f"link set eth0 mtu {_MTU_BYTES} up",
                f"addr add {self.address(host)}/24 dev eth0",
            ]
            batch("ip", name, own)
            bucket = _bucket(self.rates[host], self.links_bytes_per_s[host])
            batch("tc", switch, [f"qdisc add dev port{host} root {bucket}"])
            batch("tc", name, [f"qdisc add dev eth0 root {bucket}"])

    def _make_poor_links(self) -> None:
        """Start what carries frames between the hosts and the switch."""
        ends = [
            end
            for host in range(self.num_hosts)
            for end in (f"{self._prefix}switch/port{host}", f"{self.namespace(host)}/eth0")
        ]
        # Each way crosses two links.
        numbers = [str(self.loss), str(self.delay_s / 2), str(self.jitter_s / 2)]
        process = subprocess.Popen(
            [*_WITH_THIS, sys.executable, "-m", "evaluation.hosts.poor_links", *numbers, *ends],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        # It ends with the namespaces.
        self._processes.append(process)
        assert process.stdout is not None
        with process.stdout as told:
            if told.readline() != "ready\n":
                raise TestbedError("links that lose or delay packets cannot be made")

    def _write_files(self, host: int) -> None:
        """Give a host its own `/etc/hosts`: gloo listens where the machine's name leads."""
        folder = FILES / self.namespace(host)
        folder.mkdir(parents=True)
        lines = ["127.0.0.1 localhost", f"{self.address(host)} {socket.gethostname()}"]
        lines += [f"{self.address(other)} host{other}" for other in range(self.num_hosts)]
        (folder / "hosts").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _remove(self) -> None:
        # A process that was forked in the block does not own the hosts.
        if os.getpid() != self._pid:
            return
        try:
            with _signals_wait():
                remove(name for name in namespaces() if name.startswith(self._prefix))
                for process in self._processes:
                    process.wait()
        finally:
            _restore_sigterm(self._previous_handler)


def _bytes_per_s(rate: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate)
    if found is None or float(found[1]) == 0:
        raise TestbedError(f"a rate is written as 400mbit, 1gbit or 64kbit, not {rate!r}")
    return float(found[1]) * _UNITS[found[2]] / 8


def _bucket(rate: str, link_bytes_per_s: float) -> str:
    num_bytes = max(_BUCKET_BYTES, int(link_bytes_per_s * _BUCKET_S))
    # The queue of a slow link has room for a few frames, too.
    queue_s = max(_QUEUE_S, 10 * _MTU_BYTES / link_bytes_per_s)
    return f"tbf rate {rate} burst {num_bytes}b latency {queue_s * 1e6:.0f}us"


def _end_at_sigterm() -> object:
    """Let SIGTERM end blocks by an exception, and return what it did before; None: no change."""
    if threading.current_thread() is not threading.main_thread():
        return None
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return None
    return signal.signal(signal.SIGTERM, _exit_at_sigterm)


def _restore_sigterm(previous: object) -> None:
    if previous is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit_at_sigterm(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Keep Ctrl-C and SIGTERM back while the block runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # A handler that Python did not set is None, and cannot be set again.
    ours = {number: handler for number, handler in previous.items() if handler is not None}
    for number in ours:
        signal.signal(number, lambda number, _frame: arrived.append(number))
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
        for number in arrived:
            signal.raise_signal(number)
