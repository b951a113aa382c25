"""What a process says of itself in a roll call."""

from __future__ import annotations

import platform
import socket
import uuid
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import cast

from meshwise.hosts.host_name import addresses_of, own_address
from meshwise.hosts.member import JobMember
from meshwise.hosts.messages import Message

_PACKAGES = ("jax", "jaxlib", "meshwise")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a process says of itself.

    Attributes:
        process_id: Its number in the job.
        num_processes: How many processes it thinks there are.
        host_name: The name of its machine.
        machine: A text that only processes on one machine share.
        address: The address to which the name resolves, and on which gloo would listen: the first
            one that belongs to the machine, else the first one; empty if there is none.
        is_own_address: Whether the address belongs to the machine.
        port: Port on which the process answers during the roll call.
        token: What it answers.
        versions: Versions of Python and of packages; empty if one is not installed.
    """

    process_id: int
    num_processes: int
    host_name: str
    machine: str
    address: str
    is_own_address: bool
    port: int
    token: str
    versions: dict[str, str]

    @property
    def who(self) -> str:
        """The process, as text."""
        return f"process {self.process_id} ({self.host_name})"

    def to_message(self) -> Message:
        """Return the card as a message."""
        return asdict(self)

    @classmethod
    def from_message(cls, message: Message) -> Card:
        """Read a card.

        Args:
            message: What `to_message` returned.

        Returns:
            The card.

        Raises:
            TypeError: fields are missing, or there are others: another version of Meshwise.
        """
        return cls(**message)  # pyright: ignore[reportArgumentType]

    @classmethod
    def own(cls, member: JobMember, *, port: int) -> Card:
        """Return the card of this process.

        Args:
            member: Its place in the job.
            port: Port on which it answers.
        """
        name = socket.gethostname()
        addresses = addresses_of(name)
        own = own_address(addresses)
        return cls(
            process_id=member.process_id,
            num_processes=member.num_processes,
            host_name=name,
            machine=_machine(),
            address=own or next(iter(addresses), ""),
            is_own_address=own is not None,
            port=port,
            token=uuid.uuid4().hex,
            versions={"python": platform.python_version()}
            | {package: _version(package) for package in _PACKAGES},
        )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _machine() -> str:
    """Return a text that only processes on this machine, in one network, share.

    Containers on one machine have hosts' names and networks of their own.
    """
    name = socket.gethostname()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        network = Path("/proc/self/ns/net").readlink()
    except OSError:
        # As on macOS.
        return f"{name} {uuid.getnode()}"
    return f"{name} {boot} {network}"


def cards_of(messages: object) -> list[Card]:
    """Read a list of cards.

    Args:
        messages: What `Card.to_message` returned, in a list.

    Returns:
        The cards.
    """
    return [Card.from_message(message) for message in cast(list[Message], messages)]
