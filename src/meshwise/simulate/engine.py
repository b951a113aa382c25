"""The engine: streams of actions, transfers between them, one clock.

It knows neither schedules nor plans: each mesh runs its stream in order, each action as soon as
the messages that it waits for have arrived.  At one instant, ends come before starts, and starts of
blocking transfers before those of actions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from meshwise.kernels.arrays import Floats, Ints
from meshwise.simulate.kernels import events as kernels
from meshwise.simulate.kernels.events import NUM_FLOWS, Messages
from meshwise.simulate.kernels.fair_shares import empty_network
from meshwise.simulate.links import HostLinks, check_links
from meshwise.simulate.streams import Streams, Transfers
from meshwise.simulate.timeline import MemoryStep


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRun:
    """The times of everything that happened.

    Attributes:
        streams: What meshes did.
        num_ended: For each mesh how many of its actions ended.
        start_s: For each action its start; NaN if there was none, as for all times.
        end_s: For each action its end.
        transfer_start_s: For each transfer its start.
        transfer_end_s: For each transfer when it arrived.
        memory: For each mesh the seconds at which its memory changed, 0 first, and its bytes.
        makespan_s: Seconds until the last action or transfer ended.
    """

    streams: Streams
    num_ended: Ints
    start_s: Floats
    end_s: Floats
    transfer_start_s: Floats
    transfer_end_s: Floats
    memory: tuple[tuple[Floats, Ints], ...]
    makespan_s: float

    def memory_steps(self, mesh: int) -> tuple[MemoryStep, ...]:
        """Return the memory of a mesh over time, the first step at 0."""
        seconds, num_bytes = self.memory[mesh]
        return tuple(map(MemoryStep, seconds.tolist(), num_bytes.tolist()))

    def stuck(self) -> Iterator[tuple[int, int]]:
        """Yield each mesh that a deadlock keeps from its next action, and the transfer missed."""
        streams = self.streams
        for mesh, num_ended in enumerate(self.num_ended.tolist()):
            action = streams.first[mesh] + num_ended
            if action < streams.first[mesh + 1]:
                waits = streams.waits[streams.first_wait[action] : streams.first_wait[action + 1]]
                missed = waits[np.isnan(self.transfer_end_s[waits])]
                # An action that never ends waits for nothing.
                if len(missed):
                    yield mesh, int(missed[0])


def run_streams(
    streams: Streams,
    transfers: Transfers,
    messages: Messages,
    hosts: Sequence[HostLinks],
    resident_bytes: Ints,
) -> EngineRun:
    """Simulate what meshes do and send.

    A mesh whose action waits for what never arrives is stuck; the rest goes on.

    Args:
        streams: For each mesh its actions in order.
        transfers: What they send; each leaves from the mesh that makes it.
        messages: Kinds of transfers, whose hosts exist.
        hosts: Links of each host.
        resident_bytes: For each mesh its memory at the start.

    Raises:
        ClusterError: A bandwidth is not a finite number above 0.
    """
    for host, links in enumerate(hosts):
        check_links(host, links)
    run = _run(streams, transfers, messages, hosts, resident_bytes)
    kernels.run_events(run)
    ends = np.concatenate([run.action_s[:, kernels.END], run.transfer_s[:, kernels.ARRIVAL]])
    first_step, num_steps = (run.meshes[:, c] for c in (kernels.FIRST_STEP, kernels.NUM_STEPS))
    return EngineRun(
        streams=streams,
        num_ended=run.meshes[:-1, kernels.NUM_ENDED],
        start_s=run.action_s[:, kernels.START],
        end_s=run.action_s[:, kernels.END],
        transfer_start_s=run.transfer_s[:, kernels.MADE],
        transfer_end_s=run.transfer_s[:, kernels.ARRIVAL],
        memory=tuple(
            (run.memory_s[first : first + count], run.memory_bytes[first : first + count])
            for first, count in zip(first_step[:-1], num_steps, strict=False)
        ),
        # What never ended is not a number.
        makespan_s=float(np.fmax.reduce(ends, initial=0.0)),
    )


def _run(
    streams: Streams,
    transfers: Transfers,
    messages: Messages,
    hosts: Sequence[HostLinks],
    resident: Ints,
) -> kernels.Run:
    """Return a simulation at its start."""
    num_meshes, num_actions, num_transfers = map(len, (resident, streams.duration_s, transfers[0]))
    meshes = np.zeros((num_meshes + 1, kernels.MESH_COLUMNS), np.int64)
    meshes[:, kernels.FIRST_ACTION] = streams.first
    # A start and an end of each action change memory, and there is a step at 0.
    meshes[:, kernels.FIRST_STEP] = 2 * streams.first + np.arange(num_meshes + 1)
    num_steps = int(meshes[-1, kernels.FIRST_STEP])
    meshes[:-1, kernels.NUM_STEPS] = 1
    meshes[:-1, kernels.IN_USE] = resident
    meshes[:-1, kernels.TOUCHED] = np.arange(num_meshes)
    meshes[:-1, kernels.IS_TOUCHED] = 1
    memory_bytes = np.zeros(num_steps, np.int64)
    memory_bytes[meshes[:-1, kernels.FIRST_STEP]] = resident
    actions = np.zeros((num_actions + 1, kernels.ACTION_COLUMNS), np.int64)
    actions[:-1, kernels.START_BYTES] = streams.start_bytes
    actions[:-1, kernels.END_BYTES] = streams.end_bytes
    actions[:, kernels.FIRST_WAIT] = streams.first_wait
    actions[:, kernels.FIRST_MAKE] = streams.first_make
    action_s = np.full((num_actions, kernels.ACTION_S_COLUMNS), np.nan)
    action_s[:, kernels.DURATION] = streams.duration_s
    table = np.zeros((num_transfers, kernels.TRANSFER_COLUMNS), np.int64)
    table[:, kernels.SOURCE] = transfers.source
    table[:, kernels.DESTINATION] = transfers.destination
    table[:, kernels.KIND] = transfers.kind
    capacity = [(h.nic_bytes_per_s, h.nic_bytes_per_s, h.link_bytes_per_s) for h in hosts]
    return kernels.Run(
        meshes=meshes,
        actions=actions,
        action_s=action_s,
        waits=streams.waits,
        makes=streams.makes,
        transfers=table,
        transfer_s=np.full((num_transfers, 2), np.nan),
        messages=messages,
        network=empty_network(
            np.array(capacity, np.float64).reshape(-1),
            int(messages.kinds[transfers.kind, NUM_FLOWS].sum()),
        ),
        memory_s=np.zeros(num_steps, np.float64),
        memory_bytes=memory_bytes,
        numbers=np.array([0, num_meshes, 0, 0], np.int64),
    )
