"""A step that a driver calls, and that runs on the hosts of Ray."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any

from meshwise.api.arguments import step_name
from meshwise.api.ray_cluster import RayCluster
from meshwise.errors import TraceError
from meshwise.hosts.ray.handle import Handle
from meshwise.hosts.ray.host import Staying
from meshwise.jax_compat.contexts import is_jit_disabled, under_settings, users_mesh, users_settings
from meshwise.jax_compat.jaxprs import PyTree
from meshwise.plan.plan import Plan
from meshwise.request.methods import Follow, PlannedStep


class RayStep(PlannedStep):
    """A training step on the hosts of a `RayCluster`; made by `parallelize`.

    Arguments and results are as in a `ParallelStep`, with handles in place of arrays: an array
    stays on the hosts until it is read, as by `float(loss)`.  Arguments that are no handles go to
    every host.  It cannot be passed to `RayCluster.run`: for what else a `ParallelStep` can do,
    call `parallelize` in a function that runs there.  Settings of JAX hold as around a call of a
    `ParallelStep`, but for `jax.set_mesh` and `jax.disable_jit`, which are refused.
    """

    def __init__(
        self, fun: Callable[..., PyTree], cluster: RayCluster, parallelized: partial[Any]
    ) -> None:
        """Args: the step, where it runs, and what parallelizes it there."""
        self._fun = fun
        self._cluster = cluster
        self._parallelized = parallelized
        self._there: Handle | None = None
        update_wrapper(self, fun)

    def __call__(self, /, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Run one step: handles or arrays in, handles out."""
        return self._run(_call, *args, **kwargs)

    def init(self, fun: Callable[..., PyTree], /, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Create the state on the hosts, see `ParallelStep.init`, and return its handles."""
        return self._run(_init, fun, *args, **kwargs)

    def plan(self, /, *args: PyTree, **kwargs: PyTree) -> Plan:
        """Return the plan for arguments of these shapes, see `ParallelStep.plan`."""
        return Plan.from_json(self._run(_plan, *args, **kwargs))

    def explain(self, /, *args: PyTree, **kwargs: PyTree) -> str:
        """Return the text of the plan with prices, see `ParallelStep.explain`."""
        return self._run(_explain, *args, **kwargs)

    def stats(self) -> dict[str, float | tuple[float, ...]]:
        """Return what is known of the last step's programs, see `ParallelStep.stats`."""
        return self._run(_stats)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans made so far, oldest first."""
        return tuple(map(Plan.from_json, self._run(_plans)))

    def _run(self, fun: Callable[..., Any], /, *args: PyTree, **kwargs: PyTree) -> Any:
        if is_jit_disabled() or not users_mesh().empty:
            raise TraceError(
                f"{step_name(self._fun)} runs on the hosts of Ray, which see neither a mesh of the "
                "driver (jax.set_mesh) nor jax.disable_jit(); call it without them"
            )
        if self._there is None:
            options = dict(self._parallelized.keywords)
            if isinstance(options["method"], Follow):
                options["method"] = Follow(options["method"].followed())
            make = partial(self._parallelized.func, self._fun, cluster=self._cluster.described)
            self._there = self._cluster.run(_made, partial(make, **options))
        return self._cluster.run(_under, users_settings(), fun, self._there, *args, **kwargs)


# What the hosts call.


def _under(settings: Any, fun: Callable[..., Any], /, *args: PyTree, **kwargs: PyTree) -> Any:
    with under_settings(settings):
        return fun(*args, **kwargs)


def _made(make: Callable[[], Any]) -> Staying:
    return Staying(make())


def _call(step: Any, /, *args: PyTree, **kwargs: PyTree) -> PyTree:
    return step(*args, **kwargs)


def _init(step: Any, /, *args: PyTree, **kwargs: PyTree) -> PyTree:
    return step.init(*args, **kwargs)


def _plan(step: Any, /, *args: PyTree, **kwargs: PyTree) -> str:
    return step.plan(*args, **kwargs).to_json()


def _explain(step: Any, /, *args: PyTree, **kwargs: PyTree) -> str:
    return step.explain(*args, **kwargs)


def _stats(step: Any) -> dict[str, float | tuple[float, ...]]:
    return step.stats()


def _plans(step: Any) -> tuple[str, ...]:
    return tuple(plan.to_json() for plan in step.plans)
