"""The job of this process, as JAX detects it.

JAX is imported when it is asked, not before: whoever gives the place of a process needs no JAX.
"""

from __future__ import annotations

import os

from meshwise.hosts.member import JobMember, TransferAddresses

# The name under which `jax.distributed.initialize(cluster_detection_method=...)` knows ours.
NAME = "meshwise"


def announce_job() -> None:
    """Let `jax.distributed.initialize()` find the job that `meshwise launch` started."""
    import jax

    from meshwise.jax_compat.jobs import add_cluster_detection

    def detect() -> tuple[str, int, int] | None:
        member = JobMember.from_variables(os.environ)
        return member and (member.coordinator, member.num_processes, member.process_id)

    add_cluster_detection(NAME, detect)
    transfer = TransferAddresses.from_variables(os.environ)
    if transfer is not None:
        # JAX has no environment variables for these two.
        for name, value in (
            ("jax_cross_host_transfer_socket_address", transfer.socket),
            ("jax_cross_host_transport_addresses", transfer.transport),
        ):
            jax.config.update(name, value)  # pyright: ignore[reportUnknownMemberType]


def detected_member() -> JobMember | None:
    """Find the place of this process as `jax.distributed.initialize()` would.

    Returns:
        The place; None where JAX detects no job.

    Raises:
        ImportError: JAX cannot be imported.
    """
    member = JobMember.from_variables(os.environ)
    if member is not None:
        return member
    from meshwise.jax_compat.jobs import detected_job

    found = detected_job()
    if found is None:
        return None
    coordinator, num_processes, process_id = found
    return JobMember(coordinator=coordinator, num_processes=num_processes, process_id=process_id)
