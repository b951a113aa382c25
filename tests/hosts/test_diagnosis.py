"""What a roll call says of jobs: sound ones, and each way in which they are broken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from meshwise.doctor.finding import Finding
from meshwise.hosts.card import Card
from meshwise.hosts.diagnosis import RollCall, diagnosis
from meshwise.hosts.link_speed import LinkSpeed

VERSIONS = {"python": "3.11.7", "jax": "0.10.2", "jaxlib": "0.10.2", "meshwise": "0.1.0"}


def card(
    number: int, *, address: str = "", host: str = "", own: bool = True, **versions: str
) -> Card:
    host = host or f"node{number}"
    return Card(
        process_id=number,
        num_processes=3,
        host_name=host,
        machine=f"machine of {host}",
        address=address or f"10.0.0.{number}",
        is_own_address=own,
        port=4000 + number,
        token=f"token{number}",
        versions=VERSIONS | versions,
    )


CARDS = (card(0), card(1), card(2))


def findings(
    cards: Sequence[Card] = CARDS,
    *,
    unreached: Mapping[str, Sequence[str]] | None = None,
    rates: Sequence[float] = (1e9, 1e9),
    is_coordinator_here: bool = True,
    lost: Sequence[str] = (),
) -> dict[str, Finding]:
    call = RollCall(
        coordinator="10.0.0.0:1234",
        is_coordinator_here=is_coordinator_here,
        num_processes=3,
        limit_s=30.0,
        cards=tuple(cards),
        unreached=unreached or {},
        links={
            each.token: LinkSpeed(latency_s=1e-4, bytes_per_s=rate)
            for each, rate in zip(cards[1:], rates, strict=False)
        },
        lost=frozenset(lost),
    )
    return {finding.what: finding for finding in diagnosis(call)}


def broken(found: Mapping[str, Finding]) -> list[str]:
    return [what for what, finding in found.items() if finding.status == "broken"]


def test_a_sound_job() -> None:
    found = findings()
    assert {finding.status for finding in found.values()} == {"ok"}
    assert found["processes"].found == "3 of 3, machines: 3"
    assert found["versions"].found == ("python 3.11.7, jax 0.10.2, jaxlib 0.10.2, meshwise 0.1.0")
    assert found["host names"].found == ("node0 is 10.0.0.0, node1 is 10.0.0.1, node2 is 10.0.0.2")
    assert found["links"].found == "954 MiB/s to process 0, 100 us there and back (medians)"


def test_a_process_twice_and_one_that_is_missing() -> None:
    found = findings((card(0), card(1), card(1, host="node9")))
    assert broken(found) == ["processes"]
    assert found["processes"].found == (
        "2 processes say that they are process 1 (node1, node9); process 2 did not come within 30 s"
    )


def test_a_process_too_many() -> None:
    found = findings((*CARDS, card(3)))["processes"]
    assert found.found == "there is no process 3 (node3) in a job of 3"


def test_process_0_on_the_wrong_host() -> None:
    found = findings((card(0),), is_coordinator_here=False)
    assert found["processes"].found == (
        "process 1, 2 did not come within 30 s; 10.0.0.0:1234 is no address of the machine of "
        "process 0"
    )
    assert "links" not in found


def test_processes_of_another_number_and_one_that_is_lost() -> None:
    other = replace(CARDS[2], num_processes=8)
    found = findings((*CARDS[:2], other), lost=("token1",))["processes"]
    assert "process 2 (node2) thinks that the job has 8 processes, process 0 that" in found.found
    assert "process 1 (node1) stopped answering" in found.found


@pytest.mark.parametrize(
    ("package", "status"), [("jax", "broken"), ("meshwise", "broken"), ("python", "note")]
)
def test_versions_that_differ(package: str, status: str) -> None:
    found = findings((*CARDS[:2], card(2, **{package: "9"})))["versions"]
    assert found.status == status
    assert f"{package} 9: process 2 (node2)" in found.found
    assert f"{package} {VERSIONS[package]}: process 0 (node0), process 1 (node1)" in found.found
    missing = findings((*CARDS[:2], card(2, jaxlib="")))["versions"]
    assert "jaxlib is not installed: process 2 (node2)" in missing.found


@pytest.mark.parametrize("address", ["127.0.1.1", "::1"])
def test_a_name_that_only_its_own_machine_understands(address: str) -> None:
    found = findings((card(0), card(1, address=address), card(2)), unreached={"token0": ["token1"]})
    # That it is not reached has this cause.
    assert broken(found) == ["host names"]
    assert f"node1 resolves its own name to {address}, where no other" in found["host names"].found
    assert "/etc/hosts" in found["host names"].remedy
    # On one machine it is right.
    alone = findings([card(number, address=address, host="laptop") for number in range(3)])
    assert broken(alone) == []
    assert set(alone) == {"processes", "versions", "host names", "ports", "links inside a host"}


def test_names_that_lead_nowhere_or_elsewhere() -> None:
    nameless = replace(CARDS[1], address="")
    found = findings((card(0), nameless, card(2, own=False)))["host names"]
    assert found.status == "broken"
    assert "node1 does not know its own name" in found.found
    assert "node2 resolves its own name to 10.0.0.2, which is no address of it" in found.found


def test_closed_ports() -> None:
    found = findings(unreached={"token1": ["token2"], "token2": ["token0", "token1"]})["ports"]
    assert found.status == "broken"
    assert "process 1 (node1) does not reach process 2 (node2) at 10.0.0.2" in found.found
    assert "open all ports" in found.remedy
    many = {f"token{source}": ["token0", "token1", "token2"] for source in range(3)}
    assert findings(unreached=many)["ports"].found.endswith("and 5 more")


def test_a_slow_link_is_a_note() -> None:
    cards = [card(number) for number in range(4)]
    found = findings(cards, rates=(1e9, 1e8, 1.1e9))["links"]
    assert found.status == "note"
    assert "process 2 (node2) has 95.4 MiB/s" in found.found
    assert findings(cards, rates=(1e9, 5e8, 1.1e9))["links"].status == "ok"
