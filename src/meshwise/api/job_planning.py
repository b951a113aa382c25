"""A step is planned once for all processes of a job: process 0 plans, the others follow."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from meshwise.plan.plan import Plan
from meshwise.planner.step import PlannedCall, plan_call
from meshwise.planner.step_call import StepCall
from meshwise.request.methods import Follow, Replay
from meshwise.request.plan_request import PlanRequest
from meshwise.runtime.job.agreement import check_agreement
from meshwise.runtime.job.job import Job
from meshwise.system.progress import told_if_slow
from meshwise.trace.step import OpenStep, open_step

# Functions stand in the text of a step with the addresses that they have in this process.
_ADDRESS = re.compile(r"0x[0-9a-f]+")


def plan_in_job(job: Job, name: str, call: StepCall, request: PlanRequest) -> PlannedCall:
    """Plan a call of a step in all processes of a job, which must make the same call.

    Args:
        job: The processes.
        name: The name of the step.
        call: The call.
        request: What is asked.

    Returns:
        The same plan in each process.

    Raises:
        ClusterError: the processes call different steps, or with other shapes.
        TraceError, PinError, InfeasibleError, PlanError: what is asked cannot be had.
    """
    cluster = request.cluster()
    request = replace(request, cluster=lambda: cluster)
    opened = open_step(call.fun, call.args, call.kwargs, call.signature)
    facts = {
        "the type of the arguments": _digest(_arguments(opened)),
        "the program": step_fingerprint(opened),
        "the cluster": cluster.name,
        "the method": type(request.method).__name__,
    }
    check_agreement(job, f"the step {name}", facts)
    if isinstance(request.method, (Replay, Follow)):
        planned = plan_call(call, request)
        digest = _digest(planned.plan.to_json())
        check_agreement(job, f"the plan of {name}", {"the plan": digest})
        return planned
    own: list[PlannedCall] = []

    def plan() -> str:
        with told_if_slow(f"planning {name}"):
            own.append(plan_call(call, request))
        return own[0].plan.to_json()

    text = job.from_first(f"the plan of {name}", plan)
    if own:
        return own[0]
    method = Replay(Plan.from_json(text))
    return plan_call(
        call,
        replace(request, method=method, num_microbatches=1, pins={}, dump_ilp=None, placement=None),
    )


def step_fingerprint(opened: OpenStep) -> str:
    """Return a digest of a step as JAX traces it, with the values of its constants."""
    consts = (hashlib.sha256(np.asarray(x).tobytes()).hexdigest() for x in _plain(opened))
    text = _ADDRESS.sub("", str(opened.closed.jaxpr))
    return _digest("\n".join([text, *consts]))


def _plain(opened: OpenStep) -> list[jax.Array]:
    """Return the constants of a step as arrays of numbers."""
    return [
        jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        for x in map(jnp.asarray, opened.closed.consts)
    ]


def _arguments(opened: OpenStep) -> str:
    pairs = zip(opened.names, opened.in_avals, strict=True)
    return "\n".join(f"{name} {aval.dtype}{list(aval.shape)}" for name, aval in pairs)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
