"""One process of a job whose saves fail in one process, or are killed there.

Its arguments are what it does and a folder.  `save` writes the steps 1 and 2, and between them
twice one that fails in a process; process 1 is killed while it writes step 5.  `resume` restores
what is whole, and saves step 2.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from orbax.checkpoint._src.serialization import jax_array_handlers

import meshwise.train.stage_arrays as stage_arrays
from hosts.joined import join
from hosts.saved_stages import IDENTITY, assert_equal, state, values
from meshwise.errors import CheckpointError
from meshwise.train.checkpoint import Checkpoints
from meshwise.train.history import History
from meshwise.train.step import TrainState

WRITE = "_async_serialize_replica_slices"


def at(step: int) -> TrainState:
    """Return the state of a step, of two stages in two processes."""
    of = [[d for d in jax.devices() if d.process_index == p] for p in (0, 1)]
    where = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec())
    number = np.asarray(step, np.int32)
    count = jax.make_array_from_callback((), where, lambda _: number)
    return state(values(step), *of)._replace(step=count)


def history(step: int) -> History:
    return History(losses=(1.0,) * step)


def fails(checkpoints: Checkpoints, step: int, where: Any, name: str, process: int) -> None:
    """Save with a function that fails in one process; all are told of it at once."""

    def fail(*_args: Any, **_more: Any) -> Any:
        raise OSError(28, f"no room for {name}")

    began = time.monotonic()
    mine = jax.process_index() == process
    with mock.patch.object(where, name, fail if mine else getattr(where, name)):
        told = rf"no room for {name} \(in process {process}\)"
        with pytest.raises(CheckpointError, match=told):  # noqa: PT012 (which of the two is chance)
            checkpoints.save(at(step), history(step))
            checkpoints.wait()
    assert time.monotonic() - began < 60  # Orbax would wait for 20 minutes.


def save(folder: Path) -> None:
    with Checkpoints(folder, IDENTITY) as checkpoints:
        checkpoints.save(at(1), history(1))
        fails(checkpoints, 3, jax_array_handlers, WRITE, 1)
        fails(checkpoints, 4, stage_arrays, "sum_all_files", 0)
        checkpoints.save(at(2), history(2))
        checkpoints.wait()
        # The other process may be at step 5 by now.
        assert {path.name[0] for path in folder.glob("[0-9]*")} - {"5"} == {"1", "2"}
        dying = folder.with_name("dying")
        has_begun = threading.Event()

        async def die(*_args: Any, **_more: Any) -> Any:
            await asyncio.to_thread(has_begun.wait)
            dying.touch()
            os.kill(os.getpid(), signal.SIGKILL)

        if jax.process_index() == 1:
            setattr(jax_array_handlers, WRITE, die)
        checkpoints.save(at(5), history(5))
        has_begun.set()
        while not dying.exists():
            time.sleep(0.05)
        time.sleep(1)  # The part of process 0 is written.
        assert checkpoints.newest_step == 2
        sys.stdout.write("passed\n")
        sys.stdout.flush()
        # As a launcher does with the processes that are left.
        os.kill(os.getpid(), signal.SIGKILL)


def resume(folder: Path) -> None:
    seen: list[Any] = []
    with Checkpoints(folder, IDENTITY) as checkpoints:
        found, _ = checkpoints.restore(at(0), lambda *told: seen.append(told))
        ((step, path, text),) = seen
        assert (step, path.name) == (2, "2.damaged"), seen
        assert "checksum differs" in text
        assert_equal(found, at(1), step=1)
        checkpoints.save(at(2), history(2))
        checkpoints.wait()
        assert checkpoints.newest_step == 2
    sys.stdout.write("passed\n")


if __name__ == "__main__":
    what, there = join()
    {"save": save, "resume": resume}[what](Path(there))
    jax.distributed.shutdown()
