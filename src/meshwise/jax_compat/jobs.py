"""Jobs of several processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from jax._src import distributed
from jax._src.clusters import ClusterEnv


class KeyValueStore(Protocol):
    """What the processes of a `jax.distributed` job share: texts by key, kept by process 0."""

    def key_value_set_bytes(self, key: str, value: bytes, allow_overwrite: bool = False) -> None:
        """Set the value of a key; one that has a value is refused unless it may be overwritten."""
        ...

    def key_value_try_get_bytes(self, key: str) -> bytes:
        """Return the value of a key; an error if it has none."""
        ...

    def key_value_dir_get_bytes(self, key: str) -> list[tuple[str, bytes]]:
        """Return all keys below a key, with their values."""
        ...

    def blocking_key_value_get_bytes(self, key: str, timeout_in_ms: int) -> bytes:
        """Return the value of a key, when it has one."""
        ...

    def key_value_increment(self, key: str, increment: int) -> int:
        """Add to the number under a key, 0 if it has none, and return the sum."""
        ...

    def key_value_delete(self, key: str) -> None:
        """Remove a key and all below it."""
        ...


class JobState(NamedTuple):
    """What `jax.distributed` knows of a job: this process, how many there are, what they share.

    `coordinator` is the `host:port` of process 0, as this process was told it.
    """

    process: int
    num_processes: int
    store: KeyValueStore
    coordinator: str


def job_state() -> JobState | None:
    """Return the job of this process; None before `jax.distributed.initialize()`.  No backend."""
    state = distributed.global_state
    client: Any = state.client
    if client is None:
        return None
    address = str(state.coordinator_address)
    return JobState(state.process_id, state.num_processes, client, address)


def add_cluster_detection(name: str, detect: Callable[[], tuple[str, int, int] | None]) -> None:
    """Let `jax.distributed.initialize()` find a job in one more way, which it tries first.

    JAX has no public registry: it asks the subclasses of `ClusterEnv` in their order.  JAX 0.10.2.

    Args:
        name: How `cluster_detection_method` names the way.
        detect: Returns the address of the coordinator, the number of processes and that of this
            process; None where there is no such job.
    """

    def found() -> tuple[str, int, int]:
        job = detect()
        if job is None:
            raise RuntimeError(f"this process is in no job of {name}")
        return job

    class Detection(ClusterEnv):
        @classmethod
        def is_env_present(cls) -> bool:
            return detect() is not None

        @classmethod
        def get_coordinator_address(cls, *_: Any, **__: Any) -> str:
            return found()[0]

        @classmethod
        def get_process_count(cls) -> int:
            return found()[1]

        @classmethod
        def get_process_id(cls) -> int:
            return found()[2]

    Detection.name = name
    # A job that was started inside of one of Slurm's sees the variables of both.
    others = [way for way in ClusterEnv._cluster_types if way.name != name]
    ClusterEnv._cluster_types[:] = [Detection, *others]


def detected_job(timeout_s: int = 30) -> tuple[str, int, int] | None:
    """Find the job of this process as `jax.distributed.initialize()` does.

    Args:
        timeout_s: Seconds that a way of detection may wait for an answer.

    Returns:
        The address of the coordinator, the number of processes and that of this process; None
        where JAX detects no job.
    """
    coordinator, num_processes, process_id, _ = ClusterEnv.auto_detect_unset_distributed_params(
        coordinator_address=os.environ.get("JAX_COORDINATOR_ADDRESS"),
        num_processes=None,
        process_id=None,
        local_device_ids=None,
        cluster_detection_method=None,
        initialization_timeout=timeout_s,
    )
    if coordinator is None or num_processes is None or process_id is None:
        return None
    return coordinator, num_processes, process_id
