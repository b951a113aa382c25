"""Ray Train's `JaxTrainer`, on hosts with virtual CPU devices too."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from meshwise.errors import InfeasibleError, LaunchError
from meshwise.hosts.member import JobMember
from meshwise.hosts.ray.host_request import HostRequest, ray_module
from meshwise.units import counted

if TYPE_CHECKING:
    from ray.train import RunConfig
    from ray.train.v2.jax import JaxTrainer


def trainer(
    train_loop: Callable[..., Any],
    *,
    hosts: int | tuple[int, int],
    devices_per_host: int | None = None,
    resources_per_host: Mapping[str, float] | None = None,
    env_vars: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
    run_config: RunConfig | None = None,
    **scaling: Any,
) -> JaxTrainer:
    """Return Ray Train's trainer of a loop that runs in one process on each host.

    The processes have joined when the loop begins: `mw.parallelize` in it plans for the devices of
    all hosts.  `trainer.fit()` runs it; Ray Train watches the workers, and starts them again as
    `run_config` says.

    Args:
        train_loop: The loop; it takes `config`, if there is one.  Where it may be started again, it
            begins by restoring its newest checkpoint.
        hosts: How many processes; or the least and the most: Ray Train starts with as many as there
            are, and starts again when hosts are lost or come.
        devices_per_host: Virtual CPU devices of each; None where hosts have accelerators.
        resources_per_host: What Ray reserves for each, as `{"GPU": 8}`; one CPU if nothing is said.
            A host with accelerators takes all of its node.
        env_vars: Environment variables of each process.
        config: What the loop gets.
        run_config: Of Ray Train: name, folder, failures.
        **scaling: More of Ray Train's `ScalingConfig`, as `topology` for TPUs, or
            `elastic_resize_monitor_interval_s`, how often it looks for more hosts.

    Raises:
        LaunchError: Ray is not installed, or the hosts have no devices.
    """
    train = ray_module("ray.train")
    least, most = hosts if isinstance(hosts, tuple) else (hosts, hosts)
    request = HostRequest(
        num_hosts=most,
        devices_per_host=devices_per_host,
        resources_per_host=resources_per_host,
        env_vars=env_vars or {},
    )
    if not isinstance(least, int) or not 1 <= least <= most:
        raise LaunchError(f"hosts={hosts!r} must be the least, of at least 1, and the most")
    run = run_config or train.RunConfig()
    environment = dict(run.worker_runtime_env or {})
    variables = {**request.variables(), **environment.get("env_vars", {})}
    loop = _Loop(train_loop if config is None else partial(train_loop, dict(config)))
    return ray_module("ray.train.v2.jax").JaxTrainer(
        # Ray Train joins workers with accelerators itself.
        partial(_run if request.accelerator else _join_and_run, loop, most),
        scaling_config=train.ScalingConfig(
            num_workers=hosts,
            resources_per_worker=request.resources,
            placement_strategy=request.strategy,
            use_gpu=request.accelerator == "GPU",
            use_tpu=request.accelerator == "TPU",
            **scaling,
        ),
        run_config=dataclasses.replace(
            run, worker_runtime_env={**environment, "env_vars": variables}
        ),
    )


class _Loop:
    """A loop that is unpickled when it is called: JAX arrays in it would start JAX before."""

    def __init__(self, loop: Callable[[], Any]) -> None:
        self._loop = loop

    def __call__(self) -> Any:
        return self._loop()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (_run_pickled, ray_module("ray.cloudpickle").dumps(self._loop))


def _run_pickled(loop: bytes) -> Any:
    return ray_module("ray.cloudpickle").loads(loop)()


def _join_and_run(loop: Callable[[], Any], most: int) -> Any:
    """Join the other workers, and run the loop."""
    import jax

    from meshwise.hosts.ray.joining import coordinator_here, join

    context = ray_module("ray.train").get_context()
    broadcast = ray_module("ray.train.collective").broadcast_from_rank_zero
    member = JobMember(
        coordinator=broadcast(coordinator_here()),
        num_processes=context.get_world_size(),
        process_id=context.get_world_rank(),
    )
    join(member, is_one_node=context.get_local_world_size() == member.num_processes)
    result = _run(loop, most)
    # All have come to the end; after an error nobody waits for the others.
    jax.distributed.shutdown()
    return result


def _run(loop: Callable[[], Any], most: int) -> Any:
    """Run the loop; where no plan fits, the error says how many hosts were asked for."""
    try:
        return loop()
    except InfeasibleError as error:
        here = ray_module("ray.train").get_context().get_world_size()
        if here < most:
            error.add_note(
                f"This was on {here} of {counted(most, 'host')}: Ray Train tries again as often as "
                "its max_failures says, with the hosts that there are then; with "
                f"hosts=({here + 1}, {most}) it waits for more.  Checkpoints stay as they are."
            )
        raise
