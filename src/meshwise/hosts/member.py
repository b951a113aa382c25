"""The place of a process in its job, and the environment variables that say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# How often the job was started again.
RESTARTS = "MESHWISE_RESTARTS"
# The name of a job; its restarts have the same.
START = "MESHWISE_START"
_COORDINATOR = "MESHWISE_COORDINATOR"
_NUM_PROCESSES = "MESHWISE_NUM_PROCESSES"
_PROCESS_ID = "MESHWISE_PROCESS_ID"
_TRANSFER_SOCKET = "MESHWISE_TRANSFER_SOCKET"
_TRANSFER_TRANSPORT = "MESHWISE_TRANSFER_TRANSPORT"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMember:
    """The place of a process in a job, as `jax.distributed.initialize` takes it.

    Attributes:
        coordinator: Address of process 0, as "host:port".
        num_processes: The number of processes of the job.
        process_id: The number of this process, from 0.
    """

    coordinator: str
    num_processes: int
    process_id: int

    @property
    def address(self) -> tuple[str, int]:
        """The host of the coordinator, without brackets around an IPv6 address, and its port.

        Raises:
            ValueError: the coordinator is not "host:port".
        """
        host, colon, port = self.coordinator.rpartition(":")
        if not colon or not host or not port.isdecimal():
            raise ValueError(f"{self.coordinator!r} is not HOST:PORT")
        return host.strip("[]"), int(port)

    def variables(self) -> dict[str, str]:
        """Return the environment variables that tell a process its place."""
        return {
            _COORDINATOR: self.coordinator,
            _NUM_PROCESSES: str(self.num_processes),
            _PROCESS_ID: str(self.process_id),
        }

    @classmethod
    def from_variables(cls, environment: Mapping[str, str]) -> JobMember | None:
        """Read the place of a process that `meshwise launch` started.

        Args:
            environment: Environment variables.

        Returns:
            The place; None where the variables do not say one.
        """
        found = [environment.get(name) for name in (_COORDINATOR, _NUM_PROCESSES, _PROCESS_ID)]
        coordinator, num_processes, process_id = found
        if coordinator is None or num_processes is None or process_id is None:
            return None
        return cls(
            coordinator=coordinator,
            num_processes=int(num_processes),
            process_id=int(process_id),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferAddresses:
    """Where a process offers arrays to others: `jax.device_put` between processes needs it on CPUs.

    Attributes:
        socket: Address of the server of this process, as "host:port".
        transport: Addresses at which the bytes flow, separated by commas; port 0 is a free one.
    """

    socket: str
    transport: str

    def variables(self) -> dict[str, str]:
        """Return the environment variables that tell a process its addresses."""
        return {_TRANSFER_SOCKET: self.socket, _TRANSFER_TRANSPORT: self.transport}

    @classmethod
    def from_variables(cls, environment: Mapping[str, str]) -> TransferAddresses | None:
        """Read the addresses that `meshwise launch` gave a process.

        Args:
            environment: Environment variables.

        Returns:
            The addresses; None where the variables do not say them.
        """
        socket, transport = (
            environment.get(name) for name in (_TRANSFER_SOCKET, _TRANSFER_TRANSPORT)
        )
        if socket is None or transport is None:
            return None
        return cls(socket=socket, transport=transport)
