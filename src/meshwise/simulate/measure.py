"""What a run says of each mesh: how long it waited for transfers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from meshwise.simulate.engine import EngineRun
from meshwise.simulate.kernels.events import BLOCKING, Messages
from meshwise.simulate.kernels.exposure import mesh_exposed_s
from meshwise.simulate.streams import Transfers


def exposed_s(run: EngineRun, transfers: Transfers, messages: Messages) -> tuple[float, ...]:
    """Return for each mesh the seconds that it idles while a transfer runs that it waits for.

    It waits for the transfers that its next action needs, and for blocking ones from it or to it.

    Args:
        run: The times of everything that happened.
        transfers: All transfers.
        messages: Their kinds.
    """
    streams, start_s, end_s = run.streams, run.transfer_start_s, run.transfer_end_s
    stops = np.flatnonzero((messages.kinds[transfers.kind, BLOCKING] > 0) & (end_s > start_s))
    stops = stops[np.lexsort((end_s[stops], start_s[stops]))]
    source, destination = transfers.source[stops], transfers.destination[stops]
    found: list[float] = []
    for mesh, (first, end) in enumerate(pairwise(streams.first.tolist())):
        seconds = mesh_exposed_s(
            np.append(run.start_s[first:end], run.makespan_s),
            run.end_s[first:end],
            streams.first_wait[first : end + 1],
            streams.waits,
            start_s,
            end_s,
            stops[(source == mesh) | (destination == mesh)],
        )
        found.append(float(seconds))
    return tuple(found)
