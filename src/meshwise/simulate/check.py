"""Whether the engine's input is possible."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshwise.errors import ProgramError
from meshwise.simulate.actions import Action, Flow, Transfer


def check_streams(
    streams: Sequence[Sequence[Action]], transfers: Sequence[Transfer], num_hosts: int
) -> None:
    """Check that every index exists, every message leaves once, and numbers are no less than 0.

    Raises:
        ProgramError: With the names of the action and the transfer.
    """
    for transfer in transfers:
        if not (0 <= transfer.source < len(streams) and 0 <= transfer.destination < len(streams)):
            raise ProgramError(
                f"{transfer.name} goes from mesh {transfer.source} to mesh {transfer.destination}; "
                f"there are {len(streams)}"
            )
        for flow in transfer.flows:
            check_flow(transfer.name, flow, num_hosts)
    made: set[int] = set()
    for mesh, stream in enumerate(streams):
        for action in stream:
            _check_action(action, mesh, transfers, made)


def _check_action(action: Action, mesh: int, transfers: Sequence[Transfer], made: set[int]) -> None:
    if not 0 <= action.duration_s < math.inf:
        raise ProgramError(f"{action.name} on mesh {mesh} takes {action.duration_s} s")
    for index in (*action.waits, *action.makes):
        if not 0 <= index < len(transfers):
            raise ProgramError(
                f"{action.name} on mesh {mesh} names transfer {index} of {len(transfers)}"
            )
    for index in action.waits:
        if transfers[index].destination != mesh:
            raise ProgramError(
                f"{action.name} on mesh {mesh} waits for {transfers[index].name}, which goes to "
                f"mesh {transfers[index].destination}"
            )
    for index in action.makes:
        if transfers[index].source != mesh:
            raise ProgramError(
                f"{action.name} on mesh {mesh} makes {transfers[index].name}, which leaves from "
                f"mesh {transfers[index].source}"
            )
        if index in made:
            raise ProgramError(
                f"{action.name} on mesh {mesh} makes {transfers[index].name} a second time"
            )
        made.add(index)


def check_flow(name: str, flow: Flow, num_hosts: int) -> None:
    """Check that the hosts of a flow exist, and that its numbers are possible.

    Args:
        name: Of what has the flow, for the message.
        flow: The flow.
        num_hosts: How many hosts there are.

    Raises:
        ProgramError: They are not.
    """
    if not (0 <= flow.source < num_hosts and 0 <= flow.destination < num_hosts):
        raise ProgramError(
            f"{name} has a flow from host {flow.source} to host {flow.destination}; there are "
            f"{num_hosts}"
        )
    if not (
        0 <= flow.num_bytes < math.inf
        and 0 <= flow.latency_s < math.inf
        and flow.limit_bytes_per_s > 0
    ):
        raise ProgramError(f"{name} has an impossible flow: {flow}")
