"""What is refused before a transport by `jax.device_put` sends anything, and after a failure."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from meshwise.errors import TransportError
from meshwise.runtime.transports import device_put
from meshwise.runtime.transports.choice import transport_of
from meshwise.runtime.transports.device_put import DevicePutTransport
from meshwise.runtime.transports.sockets import SocketTransport


@dataclass
class FakeJob:
    """A job of two processes of which the other one says what it is told here."""

    transport: str | None = "device_put"
    other: str = ""
    process: int = 0
    whereabouts: None = None

    def check(self) -> None:
        """Nothing ends this job."""

    def exchange(self, topic: str, text: str) -> list[str]:
        return [text, self.other]

    def count(self, name: str) -> int:
        return 1


@pytest.fixture
def sound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_put, "_missing", lambda: "")
    monkeypatch.setattr(DevicePutTransport, "_failure", None)


def make(job: Any) -> Any:
    return transport_of(job)


def test_cpus_without_addresses_are_refused() -> None:
    with pytest.raises(TransportError) as error:
        make(FakeJob())
    for part in (
        "process 0 cannot send arrays",
        "jax_cross_host_transfer_socket_address",
        "jax_cross_host_transport_addresses",
        "before jax.distributed.initialize",
        "`meshwise launch`",
    ):
        assert part in str(error.value)


@pytest.mark.usefixtures("sound")
def test_what_another_process_lacks_is_refused_here_too() -> None:
    with pytest.raises(TransportError, match="process 1 cannot send arrays: no way"):
        make(FakeJob(other="no way"))


def test_devices_of_several_kinds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [SimpleNamespace(device_kind=kind, platform="gpu") for kind in ("H100", "A100")]
    monkeypatch.setattr(jax, "devices", lambda: devices)
    with pytest.raises(TransportError, match="devices of one kind, these are A100, H100"):
        make(FakeJob())
    assert isinstance(make(FakeJob(transport=None)), SocketTransport)


@pytest.mark.usefixtures("sound")
def test_accelerators_have_it_by_default_and_cpus_have_sockets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert isinstance(make(FakeJob(transport=None)), SocketTransport)
    monkeypatch.setattr(
        jax, "devices", lambda: [SimpleNamespace(device_kind="H100", platform="gpu")]
    )
    found = make(FakeJob(transport=None))
    assert isinstance(found, DevicePutTransport)
    assert found.is_collective
    assert isinstance(make(FakeJob(transport="sockets")), SocketTransport)


@pytest.mark.usefixtures("sound")
def test_after_a_failure_no_transport_of_the_process_sends_anything() -> None:
    one, other = make(FakeJob()), make(FakeJob())
    one.check()
    one.abandon(ValueError("first"))
    one.abandon(ValueError("second"))
    for transport in (one, other, make(FakeJob())):
        with pytest.raises(TransportError, match=r"failed in the midst .*ValueError: first.*again"):
            transport.pass_all([], "nothing")
