"""The processes of a job meet with plain sockets, before JAX tries, and find what is wrong.

Process 0 listens on the port of the coordinator, where JAX will. All others connect and hand in a
card; process 0 asks each whether it reaches all others, measures the links, and tells all of them
what was found.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from math import ceil
from typing import Any, cast

from meshwise.doctor.finding import Finding
from meshwise.hosts.card import Card, cards_of
from meshwise.hosts.diagnosis import RollCall, diagnosis
from meshwise.hosts.host_name import addresses_of, own_address
from meshwise.hosts.link_speed import LinkSpeed, answer_link, measured_link
from meshwise.hosts.member import JobMember
from meshwise.hosts.messages import Channel, Message
from meshwise.hosts.reach import Door, dual_server, unreached

Findings = tuple[Finding, ...]
Tell = Callable[[Findings], None]

_RETRY_S = 0.2
# For a message that the other process has only to send.
_ANSWER_S = 5.0
# For the first word of process 0, which may be busy with another process that came.
_GREETING_S = 12.0
_REACH_S = 3.0
_AT_ONCE = 32
# What a link may take, and more.
_LINK_S = 15.0


def roll_call(member: JobMember, *, tell: Tell, limit_s: float = 30.0) -> Findings:
    """Check the job of this process together with its other processes.

    Args:
        member: The place of this process.
        tell: Takes the findings where this process is the one to show them: process 0, before the
            others return, and a process that does not reach process 0.
        limit_s: Seconds in which all processes must have come.

    Returns:
        What was found, the same in all processes that reach process 0.

    Raises:
        ValueError: the coordinator is not "host:port".
    """
    try:
        if member.process_id == 0:
            return _lead(member, tell, limit_s)
        return _visit(member, limit_s)
    except _AbsenceError as absence:
        findings = (
            Finding(what="coordinator", status="broken", found=str(absence), remedy=absence.remedy),
        )
        tell(findings)
        return findings


class _AbsenceError(Exception):
    """This process does not take part: why, and what to do."""

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(found)
        self.remedy = remedy


# -- process 0 -----------------------------------------------------------------------------------


def _lead(member: JobMember, tell: Tell, limit_s: float) -> Findings:
    """Call the others, look at them, and tell all what was found.

    Raises:
        _AbsenceError: this process cannot be the coordinator.
    """
    host, port = member.address
    try:
        server = dual_server(port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise _AbsenceError(
                f"process 0 cannot listen on port {port}: {error.strerror}",
                "choose another port for the coordinator",
            ) from error
        # Perhaps another process says that it is process 0; it then tells all.
        with suppress(_AbsenceError):
            return _visit(member, _ANSWER_S)
        raise _AbsenceError(
            f"port {port} of process 0 is in use by another program",
            "choose another port for the coordinator (JAX_COORDINATOR_PORT under Slurm and Open "
            "MPI); JAX itself would crash, or share the port with another job",
        ) from error
    with server, Door() as door, ExitStack() as stack:
        own = Card.own(member, port=door.port)
        door.answer(own.token)
        guests = _gathered(server, member.num_processes - 1, limit_s)
        for guest in guests:
            stack.enter_context(guest.channel)
        cards = (own, *(guest.card for guest in guests))
        reach = _reach_of_all(own, guests, cards)
        call = RollCall(
            coordinator=member.coordinator,
            is_coordinator_here=own_address(addresses_of(host)) is not None,
            num_processes=member.num_processes,
            limit_s=limit_s,
            cards=cards,
            unreached=reach,
            links=_links(guests),
            lost=frozenset(guest.card.token for guest in guests if guest.is_lost),
        )
        findings = diagnosis(call)
        message: Message = {"ask": "end", "findings": [asdict(each) for each in findings]}
        for guest in guests:
            guest.send(message)
        # The others end when the connections are closed, and a launcher may then end this process.
        tell(findings)
        return findings


class _Guest:
    """A process that came, as process 0 sees it; once lost, it is asked nothing any more."""

    def __init__(self, card: Card, channel: Channel) -> None:
        self.card = card
        self.channel = channel
        self.is_lost = False

    def send(self, message: Message) -> None:
        if not self.is_lost:
            try:
                self.channel.send(message, limit_s=_ANSWER_S)
            except OSError:
                self.is_lost = True

    def receive(self, limit_s: float) -> Message:
        """Return its answer; an empty one if there is none."""
        if not self.is_lost:
            try:
                return self.channel.receive(limit_s=limit_s)
            except OSError:
                self.is_lost = True
        return {}

    def link(self) -> LinkSpeed | None:
        """Return its link to this process; None if there is none."""
        if not self.is_lost:
            try:
                return measured_link(self.channel)
            except OSError:
                self.is_lost = True
        return None


def _gathered(server: socket.socket, count: int, limit_s: float) -> list[_Guest]:
    """Return the processes that come within the limit; who is no process of a job is sent away."""
    guests: list[_Guest] = []
    deadline = time.monotonic() + limit_s
    while len(guests) < count and (left := deadline - time.monotonic()) > 0:
        server.settimeout(left)
        try:
            channel = Channel(server.accept()[0])
        except OSError:
            continue
        try:
            channel.send({"ask": "card"}, limit_s=_ANSWER_S)
            card = Card.from_message(channel.receive(limit_s=_ANSWER_S))
        except (OSError, TypeError):
            channel.close()
            continue
        guests.append(_Guest(card, channel))
    return guests


def _reach_of_all(
    own: Card, guests: Sequence[_Guest], cards: Sequence[Card]
) -> dict[str, Sequence[str]]:
    """Return which processes (token) each process (token) does not reach."""
    request: Message = {"ask": "reach", "cards": [card.to_message() for card in cards]}
    for guest in guests:
        guest.send(request)
    found: dict[str, Sequence[str]] = {own.token: unreached(cards, limit_s=_REACH_S)}
    limit_s = _ANSWER_S + _REACH_S * ceil(len(cards) / _AT_ONCE)
    for guest in guests:
        answer = guest.receive(limit_s)
        found[guest.card.token] = cast(list[str], answer.get("unreached", []))
    return found


def _links(guests: Sequence[_Guest]) -> dict[str, LinkSpeed]:
    """Return the links of the processes (token) to this one, measured one after the other."""
    links = {guest.card.token: guest.link() for guest in guests}
    return {token: link for token, link in links.items() if link is not None}


# -- the other processes -------------------------------------------------------------------------


def _visit(member: JobMember, limit_s: float) -> Findings:
    """Do what process 0 asks, and return what it found.

    Raises:
        _AbsenceError: process 0 is not reached, or ends without an answer.
    """
    # Process 0 waits for others first, and then asks them one after the other.
    patience_s = limit_s + _ANSWER_S + _LINK_S * member.num_processes
    with Channel(_connected(member, limit_s)) as channel, Door() as door:
        card = Card.own(member, port=door.port)
        door.answer(card.token)
        try:
            channel.receive(limit_s=_GREETING_S)
            channel.send(card.to_message(), limit_s=_ANSWER_S)
        except OSError as error:
            raise _AbsenceError(
                f"{member.coordinator} is no process of `meshwise doctor --hosts`: {error}",
                "another program may use this port, or process 0 began without this process: start "
                "all within the limit",
            ) from error
        try:
            while True:
                request = channel.receive(limit_s=patience_s)
                if request["ask"] == "end":
                    findings = cast(list[dict[str, Any]], request["findings"])
                    channel.wait_for_close(limit_s=_ANSWER_S)
                    return tuple(Finding(**each) for each in findings)
                if request["ask"] == "reach":
                    tokens = unreached(cards_of(request["cards"]), limit_s=_REACH_S)
                    channel.send({"unreached": tokens}, limit_s=_ANSWER_S)
                else:
                    answer_link(channel, request)
        except OSError as error:
            raise _AbsenceError(
                f"process 0 at {member.coordinator} did not end the check: {error}",
                "look at what process 0 prints",
            ) from error


def _connected(member: JobMember, limit_s: float) -> socket.socket:
    """Connect to process 0, which may start later.

    Raises:
        _AbsenceError: it is not reached.
    """
    deadline = time.monotonic() + limit_s
    while True:
        left = deadline - time.monotonic()
        try:
            return socket.create_connection(member.address, timeout=max(left, _RETRY_S))
        except OSError as error:
            if left <= _RETRY_S:
                raise _AbsenceError(*_why_unreached(member, error, limit_s)) from error
        time.sleep(_RETRY_S)


def _why_unreached(member: JobMember, error: OSError, limit_s: float) -> tuple[str, str]:
    """Return what a failed connection means, and what to do."""
    host, port = member.address
    if isinstance(error, socket.gaierror):
        return (
            f"the name of the coordinator, {host!r}, does not resolve here: {error.strerror}",
            "correct the name, or give the address of process 0",
        )
    tried = f"process {member.process_id} cannot connect to {member.coordinator} for {limit_s:g} s"
    if isinstance(error, ConnectionRefusedError):
        return (
            f"{tried}: nobody listens on port {port}",
            "look whether process 0 runs, and on which host",
        )
    return (
        f"{tried}: {error.strerror or error}",
        f"a firewall may drop what goes to port {port}: open it, or look at the address",
    )
