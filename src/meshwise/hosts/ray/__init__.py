"""Ray starts the processes of a job: Ray Train's trainer, or actors that a driver calls.

`mw.ray` is this room: `trainer` is for users. Others use `ray_hosts.RayHosts`, the actors as the
driver sees them, with `host_request.HostRequest`, which says what each of them gets. Ray is
imported where it is needed, never before.
"""

from meshwise.hosts.ray.jax_trainer import trainer as trainer
