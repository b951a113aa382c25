"""A process that Ray started joins the others of its job."""

from __future__ import annotations

import os
import socket

import jax

from meshwise.errors import LaunchError
from meshwise.hosts.detection import NAME, announce_job
from meshwise.hosts.host_name import addresses_of, is_loopback
from meshwise.hosts.member import JobMember, TransferAddresses
from meshwise.hosts.ports import free_ports
from meshwise.hosts.ray.host_request import ray_module
from meshwise.runtime.transports.sockets import own_address

# As JAX reads it.
_BIND_ADDRESS = "JAX_COORDINATOR_BIND_ADDRESS"


def coordinator_here() -> str:
    """Return the address at which this process can coordinate the job, as "host:port"."""
    address = ray_module("ray.util").get_node_ip_address()
    return f"{address}:{free_ports(1, address='')[0]}"


def join(member: JobMember, *, is_one_node: bool) -> None:
    """Join the job; before anything asks JAX for a device.

    Args:
        member: The place of this process.
        is_one_node: Whether all processes run on one node of Ray.

    Raises:
        LaunchError: collectives between the nodes would not work.
    """
    if not is_one_node:
        _check_own_name()
    own = own_address(member.coordinator)
    transfer = TransferAddresses(
        socket=f"{own}:{free_ports(1, address='')[0]}", transport=f"{own}:0"
    )
    os.environ.update(member.variables() | transfer.variables())
    announce_job()
    jax.distributed.initialize(
        cluster_detection_method=NAME,
        # By default JAX takes connections at all addresses.
        coordinator_bind_address=os.environ.get(_BIND_ADDRESS, member.coordinator),
    )


def _check_own_name() -> None:
    """Refuse a machine whose name leads to itself only: gloo would tell the others that address."""
    name = socket.gethostname()
    found = addresses_of(name)
    if not found or is_loopback(found[0]):
        leads = f"leads to {found[0]}" if found else "does not resolve"
        raise LaunchError(
            f"the name of the machine {name!r} {leads} there, so that processes on other machines "
            "cannot reach it; give it its address in the network in /etc/hosts"
        )
