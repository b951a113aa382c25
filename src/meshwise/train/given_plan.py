"""A plan that a run is given, as by `meshwise train --plan FILE`: nothing is searched."""

from __future__ import annotations

import jax

import meshwise as mw
from meshwise.errors import ClusterError, InfeasibleError, PlanError
from meshwise.plan.record import ONE_PROGRAM
from meshwise.planner.other_step import REMEDY
from meshwise.request.devices import devices_needed
from meshwise.train.build import method_of
from meshwise.train.options import TrainOptions
from meshwise.units import bytes_text, counted

# Values that leave the choice to a plan.
_FREE = (None, "auto", "all")


def check_given_plan(options: TrainOptions) -> None:
    """Refuse options that contradict the plan of a run, if it is given one.

    Args:
        options: What to do; JAX is not asked for anything.

    Raises:
        PlanError: an option contradicts the plan, or is for a search, and there is none.
        InfeasibleError: the plan needs more memory than is allowed.
    """
    plan = options.plan
    if plan is None:
        return
    mesh = "a mesh for each stage"
    if plan.schedule == ONE_PROGRAM:
        mesh = _shape(plan.mesh.sizes)
    for name, asked, there in (
        ("--stages", options.stages, len(plan.stages)),
        ("--schedule", options.schedule, plan.schedule_choice),
        ("--mesh", _shape(options.mesh), mesh),
        ("--microbatches", options.microbatches, plan.num_microbatches),
    ):
        if asked not in (*_FREE, there):
            raise PlanError(
                f"{name} {asked} contradicts the plan of --plan, which has {there}; leave {name} "
                "out to run that plan, or leave --plan out to plan anew"
            )
    for name, is_asked in (
        ("--method", options.method != "auto"),
        ("--offload", options.offload is not None),
        ("--cluster", options.cluster is not None),
        ("--dump-ilp", options.dump_ilp is not None),
    ):
        if is_asked:
            raise PlanError(
                f"{name} is for a search, and with --plan nothing is searched; leave out one or "
                "the other"
            )
    limit = options.memory_bytes
    if limit is not None and plan.peak_bytes > limit:
        raise InfeasibleError(
            f"the plan of --plan needs {bytes_text(plan.peak_bytes)} a device, --memory allows "
            f"{bytes_text(limit)}; allow more, or leave --plan out to plan for that memory"
        )


def check_devices(options: TrainOptions) -> None:
    """Refuse a plan or a cluster with more devices than the run has, before anything is planned.

    Args:
        options: What to do.

    Raises:
        ClusterError: there are too few devices.
    """
    plan, cluster = options.plan, options.cluster
    if plan is not None:
        needed, name = devices_needed(mw.Replay(plan), mw.Cluster.local), "--plan: the plan"
        remedy = "leave --plan out to plan for those that are here"
    elif cluster is not None:
        needed, name = devices_needed(method_of(options), lambda: cluster), f"--cluster {cluster}"
        remedy = "give a cluster with as many as the run has"
    else:
        return
    there = jax.device_count()
    if needed > there:
        kind = jax.devices()[0].platform
        more = f"give --devices {needed}, or " if kind == "cpu" else ""
        raise ClusterError(
            f"{name} needs {counted(needed, 'device')}, and this run has {there} ({kind}); "
            f"{more}{remedy}"
        )


def refusal(options: TrainOptions, error: PlanError) -> PlanError:
    """Return the error of a plan that is not of the step that is trained, with what to do.

    Args:
        options: What to do, with the plan.
        error: Why the plan is refused.
    """
    reason = str(error).removesuffix(f"; {REMEDY}")
    remedy = (
        "give `meshwise plan --step` and `meshwise train --step` the same step, with the same "
        "shapes of its batch"
    )
    if options.step is None:
        remedy = (
            "the models of `meshwise train` learn bytes, those of `meshwise plan --model` have "
            "another vocabulary and optimizer: take plan.json of a run of `meshwise train` with "
            "the same --model, --seq, --batch and --dropout"
        )
    return PlanError(f"--plan: {reason}; {remedy}, or leave --plan out to plan anew")


def _shape(sizes: tuple[int, ...] | None) -> str | None:
    return None if sizes is None else "x".join(map(str, sizes))
