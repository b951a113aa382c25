"""What a roll call says of a job: which processes, versions, names, ports and links are wrong."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwise.doctor.finding import Finding
from meshwise.hosts.card import Card
from meshwise.hosts.host_name import is_loopback
from meshwise.hosts.link_speed import LinkSpeed
from meshwise.units import bytes_text, counted, seconds_text

# A link is worth a note where it is so many times slower than the median of its kind.
_SLOW_RATIO = 4.0
# So many cases are named.
_MOST_NAMED = 4
# Where these differ, programs of the processes may differ.
_STRICT = ("jax", "jaxlib", "meshwise")


@dataclass(frozen=True, slots=True, kw_only=True)
class RollCall:
    """What process 0 saw.

    Attributes:
        coordinator: Its address, as the job has it.
        is_coordinator_here: Whether this is an address of the machine of process 0.
        num_processes: How many processes there should be.
        limit_s: Seconds that it waited for them.
        cards: The processes that came, process 0 first.
        unreached: The processes (token) that a process (token) does not reach.
        links: The link of a process (token) to process 0.
        lost: The processes (token) that stopped answering.
    """

    coordinator: str
    is_coordinator_here: bool
    num_processes: int
    limit_s: float
    cards: tuple[Card, ...]
    unreached: Mapping[str, Sequence[str]]
    links: Mapping[str, LinkSpeed]
    lost: frozenset[str]


def diagnosis(call: RollCall) -> tuple[Finding, ...]:
    """Return what is found of a job.

    Args:
        call: What process 0 saw.
    """
    return (
        check_processes(call),
        check_versions(call.cards),
        check_names(call.cards),
        check_reach(call),
        *check_links(call),
    )


def check_processes(call: RollCall) -> Finding:
    """Return whether each process is there, and once.

    Args:
        call: What process 0 saw.
    """
    count = Counter(card.process_id for card in call.cards)
    wrong = [
        f"{times} processes say that they are process {number} "
        f"({', '.join(card.host_name for card in call.cards if card.process_id == number)})"
        for number, times in sorted(count.items())
        if times > 1
    ]
    wrong += [
        f"{card.who} thinks that the job has {counted(card.num_processes, 'process')}, process 0 "
        f"that it has {call.num_processes}"
        for card in call.cards
        if card.num_processes != call.num_processes
    ]
    wrong += [
        f"there is no {card.who} in a job of {call.num_processes}"
        for card in call.cards
        if card.process_id >= call.num_processes
    ]
    missing = [number for number in range(call.num_processes) if number not in count]
    if missing:
        names = _some([f"{number}" for number in missing], ", ")
        wrong.append(f"process {names} did not come within {call.limit_s:g} s")
    if missing and not call.is_coordinator_here:
        wrong.append(f"{call.coordinator} is no address of the machine of process 0")
    wrong += [f"{card.who} stopped answering" for card in call.cards if card.token in call.lost]
    machines = len({card.machine for card in call.cards})
    if not wrong:
        found = f"{call.num_processes} of {call.num_processes}, machines: {machines}"
        return Finding(what="processes", status="ok", found=found)
    return Finding(
        what="processes",
        status="broken",
        found=_some(wrong, "; "),
        remedy="each process needs a number of its own, from 0 on; one that was started and is "
        "missing prints why",
    )


def check_versions(cards: Sequence[Card]) -> Finding:
    """Return whether all processes run the same versions.

    Args:
        cards: The processes.
    """
    differing: list[str] = []
    is_broken = False
    for package in cards[0].versions:
        by_version: dict[str, list[Card]] = {}
        for card in cards:
            by_version.setdefault(card.versions.get(package, ""), []).append(card)
        if len(by_version) > 1:
            is_broken |= package in _STRICT
            differing += [
                f"{package} {version or 'is not installed'}: "
                f"{_some([card.who for card in those], ', ')}"
                for version, those in by_version.items()
            ]
    if not differing:
        found = ", ".join(f"{name} {version}" for name, version in cards[0].versions.items())
        return Finding(what="versions", status="ok", found=found)
    return Finding(
        what="versions",
        status="broken" if is_broken else "note",
        found="; ".join(differing),
        remedy="install the same versions on all hosts",
    )


def check_names(cards: Sequence[Card]) -> Finding:
    """Return whether the name of each machine resolves to an address at which others reach it.

    Args:
        cards: The processes.
    """
    wrong = _wrong_names(cards)
    if not wrong:
        found = ", ".join(dict.fromkeys(f"{card.host_name} is {card.address}" for card in cards))
        return Finding(what="host names", status="ok", found=found)
    return Finding(
        what="host names",
        status="broken",
        found=_some(list(dict.fromkeys(wrong.values())), "; "),
        remedy="in /etc/hosts of this machine, give its name the address of its network card (some "
        "systems write 127.0.1.1 there); gloo waits for a minute or for ever otherwise",
    )


def _wrong_names(cards: Sequence[Card]) -> dict[str, str]:
    """Return what is wrong with the names of processes, by token."""
    is_alone = len({card.machine for card in cards}) == 1
    wrong: dict[str, str] = {}
    for card in cards:
        if not card.address:
            wrong[card.token] = f"{card.host_name} does not know its own name"
        elif not card.is_own_address:
            wrong[card.token] = (
                f"{card.host_name} resolves its own name to {card.address}, which is no address of "
                "it"
            )
        elif is_loopback(card.address) and not is_alone:
            wrong[card.token] = (
                f"{card.host_name} resolves its own name to {card.address}, where no other machine "
                "reaches it"
            )
    return wrong


def check_reach(call: RollCall) -> Finding:
    """Return whether each process reaches each other one.

    Args:
        call: What process 0 saw.
    """
    by_token = {card.token: card for card in call.cards}
    # What is wrong with these is said elsewhere.
    excused = _wrong_names(call.cards).keys() | call.lost
    wrong = [
        f"{by_token[source].who} does not reach {card.who} at {card.address}"
        for source, tokens in call.unreached.items()
        for card in (by_token[token] for token in tokens)
        if card.token not in excused
    ]
    if not wrong:
        found = "all processes reach each other" if not excused else "no other is closed"
        return Finding(what="ports", status="ok", found=found)
    return Finding(
        what="ports",
        status="broken",
        found=_some(wrong, "; "),
        remedy="gloo and NCCL connect processes at ports that the system chooses: open all ports "
        "between the hosts to each other",
    )


def check_links(call: RollCall) -> tuple[Finding, ...]:
    """Return how fast the links to process 0 are; nothing where there is none.

    Args:
        call: What process 0 saw.
    """
    first = call.cards[0]
    found: list[Finding] = []
    for is_near, what in ((False, "links"), (True, "links inside a host")):
        links = {
            card.who: call.links[card.token]
            for card in call.cards
            if card.token in call.links and (card.machine == first.machine) is is_near
        }
        if links:
            found.append(_speed_finding(what, links))
    return tuple(found)


def _speed_finding(what: str, links: Mapping[str, LinkSpeed]) -> Finding:
    """Return how fast some links are, and which is much slower than the others."""
    rates = {who: link.bytes_per_s for who, link in links.items()}
    latency_s = statistics.median(link.latency_s for link in links.values())
    slowest = min(rates, key=lambda who: rates[who])
    median = statistics.median(rates.values())
    text = (
        f"{bytes_text(median)}/s to process 0, {seconds_text(latency_s)} there and back (medians)"
    )
    if rates[slowest] * _SLOW_RATIO > median:
        return Finding(what=what, status="ok", found=text)
    return Finding(
        what=what,
        status="note",
        found=f"{text}; {slowest} has {bytes_text(rates[slowest])}/s",
        remedy="a collective is as fast as its slowest link: look at the network of this host",
    )


def _some(texts: Sequence[str], separator: str) -> str:
    """Return the first few texts, and how many more there are."""
    more = len(texts) - _MOST_NAMED
    named = separator.join(texts[:_MOST_NAMED])
    return f"{named} and {more} more" if more > 0 else named
