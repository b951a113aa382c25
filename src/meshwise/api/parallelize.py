"""`parallelize`: a training step written for one device, planned and run on many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any, Literal, Never

from meshwise.api.arguments import (
    DEFAULT_BATCH_ARGNUMS,
    argument_options,
    check_folder,
    check_num_microbatches,
    check_options,
    refuse_unknown_options,
    step_name,
)
from meshwise.api.distributed_cluster import seen_cluster
from meshwise.api.local_cluster import OneProcess, check_cluster
from meshwise.api.parallel_step import ParallelStep
from meshwise.api.ray_cluster import RayCluster
from meshwise.api.ray_step import RayStep
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import TraceError
from meshwise.jax_compat.jaxprs import PyTree
from meshwise.request.methods import Auto, Method, check_method
from meshwise.request.plan_request import PlanRequest
from meshwise.request.replay import check_beside_replay
from meshwise.rules.kernel import ForeignRule, check_rules
from meshwise.trace.step import Statistics


def parallelize(
    fun: Callable[..., PyTree] | None = None,
    *,
    method: Method | None = None,
    cluster: ClusterSpec | None = None,
    num_microbatches: int | Literal["auto"] = 1,
    batch_argnums: int | Sequence[int] = DEFAULT_BATCH_ARGNUMS,
    batch_dims: PyTree = 0,
    microbatch_statistics: Statistics = "exact",
    static_argnums: int | Sequence[int] = (),
    donate_argnums: int | Sequence[int] | Literal["auto"] = "auto",
    pins: Mapping[str, Any] | None = None,
    memory_bytes: int | None = None,
    rules: Mapping[str, ForeignRule] | None = None,
    dump_ilp: str | PathLike[str] | None = None,
    **unknown: Never,
) -> Any:
    """Parallelise a training step; decorator or call.

    Args:
        fun: The step: any function of pytrees of arrays, as `step(state, batch)`.
        method: How the plan is found; `Auto()` by default.
        cluster: What to plan for; by default `Cluster.distributed()` where `jax.distributed` is
            initialised, else `Cluster.local()`, the devices of this process.
        num_microbatches: In how many parts the batch runs, one after the other; "auto" takes the
            fewest that fit into memory.
        batch_argnums: Positional arguments that are batch data.
        batch_dims: Their batch dim: a number, or a pytree prefix (None: not batch data).
        microbatch_statistics: "exact": the result is that of the full batch, and what does not
            separate is an error; "local": statistics of each micro-batch, results averaged.
        static_argnums: Positional arguments that are compile-time constants.
        donate_argnums: Arguments whose buffers may be reused; "auto": state that the step
            returns with the same tree, shapes and dtypes.  One that is named but not returned
            is a warning, as in `jax.jit`, and stands in the plan's warnings.
        pins: What is fixed; the optimiser fills the rest.  A pattern to a `PartitionSpec` of mesh
            axis names, or to a `Pin`: `{"0/params/**/embedding": P("y", None),
            "activation:mlp_hidden": P("x", P.UNCONSTRAINED), "0/**": mw.Pin(forbid="z")}`.  A
            pattern is the path of an argument, which begins with its number or keyword (`*`
            within a component, `**` for any number of components), or `activation:` and a name
            given by `jax.ad_checkpoint.checkpoint_name`, in loops too.  In a spec None is a dim
            that is not split and `P.UNCONSTRAINED` one that is left to the optimiser;
            `Pin(forbid=...)` names axes that may not split the tensor.  All pins that match a
            tensor hold.  The mesh is pinned by the method, as `IntraOp(mesh_shape=(2, 4))`.
        memory_bytes: What one device may use; the cluster's by default.
        rules: Loops of primitives that Meshwise does not know, by name: a `KernelLoops`, or a
            function of the parameters and operands of an equation that gives one, or None.  For
            code of your own `sharded_kernel` says the same where the code is.
        dump_ilp: A folder that gets every ILP of the planner, as files for `meshwise solve`.
        unknown: Any other option is an error, which says what may have been meant.

    Numbers of arguments count as in `jax.jit`: static arguments too, negative ones from the end
    of the call, and arguments that have a position but are passed by keyword.  Those of a method
    count without `self`, which is a constant of the step.

    Parallel code in the step keeps its meaning, on whole arrays: the axes of an inner `shard_map`
    or `pmap` become dims, which the plan may split in its own way.  A `with_sharding_constraint`
    (or a `reshard` over Explicit axes) is a pin if `IntraOp`, `Auto` or `Follow` plans on one mesh
    of the same shape, whatever the axes are called.  Otherwise it is dropped with a warning.

    Settings of JAX around a call, as `jax.set_mesh`, `jax.enable_x64` or
    `jax.default_matmul_precision`, hold as for `jax.jit`: where JAX would trace a step anew, it is
    planned anew.

    A step that is called with batches of several sizes, or sequences of several lengths, has a plan
    for each; all of them have the state where the first one has it.  To choose for which shapes
    that is, plan for these first, as `step.plan(state, largest_batch)`.

    Returns:
        A `ParallelStep`, called like `fun`; a `RayStep` for a cluster of `Cluster.ray`.

    Raises:
        TraceError, PlanError, ClusterError: an option is not what it can be, or contradicts the
            plan that is replayed.
        CallError: there is no such option.
        InfeasibleError: the plan that is replayed needs more than `memory_bytes`.
        TraceError, PinError, InfeasibleError, ClusterError: when the first call or `plan` finds
            that the step, the pins, the memory or the devices do not allow what is asked.
    """
    given = {
        "method": method,
        "num_microbatches": num_microbatches,
        "batch_argnums": batch_argnums,
        "batch_dims": batch_dims,
        "microbatch_statistics": microbatch_statistics,
        "static_argnums": static_argnums,
        "donate_argnums": donate_argnums,
        "pins": pins,
        "memory_bytes": memory_bytes,
        "rules": rules,
        "dump_ilp": dump_ilp,
    }
    refuse_unknown_options(unknown, ("cluster", *given))
    if fun is None:
        return partial(parallelize, cluster=cluster, **given)
    _check_fun(fun)
    num_microbatches = check_num_microbatches(num_microbatches)
    check_options(microbatch_statistics, pins, memory_bytes)
    checked = None if cluster is None else check_cluster(cluster)
    request = PlanRequest(
        method=Auto() if method is None else check_method(method),
        cluster=seen_cluster if checked is None else partial(_given, checked),
        num_microbatches=num_microbatches,
        statistics=microbatch_statistics,
        pins=dict(pins or {}),
        memory_bytes=memory_bytes,
        rules=check_rules(rules),
        dump_ilp=None if dump_ilp is None else check_folder(dump_ilp),
    )
    check_beside_replay(request)
    options = argument_options(
        fun,
        batch_argnums=batch_argnums,
        batch_dims=batch_dims,
        static_argnums=static_argnums,
        donate_argnums=donate_argnums,
    )
    if isinstance(checked, RayCluster):
        return RayStep(fun, checked, partial(parallelize, **given))
    return ParallelStep(fun, request, options, is_alone=isinstance(checked, OneProcess))


def _given(cluster: ClusterSpec) -> ClusterSpec:
    """Return a cluster: under `partial` this can be pickled, as a lambda cannot."""
    return cluster


def _check_fun(fun: object) -> None:
    if isinstance(fun, ParallelStep):
        raise TraceError(
            f"{step_name(fun)} is made by parallelize already; parallelize the function itself"
        )
    if not callable(fun) or isinstance(fun, type):
        raise TraceError(
            f"parallelize takes the step, a function, got {fun!r:.80}; options go by keyword, as "
            "parallelize(step, method=mw.Zero3(), cluster=...)"
        )
