"""A problem run in parallel: by a method, or by a decision that nothing has optimised."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax

import meshwise as mw
from doubles.random_decision import random_decision
from meshwise.cluster.cpu import cpu_cluster
from meshwise.plan.verify import verify_decision
from meshwise.request.methods import Method
from meshwise.runtime.compile import compile_decided
from meshwise.spmd.program import concrete_mesh, shardings
from meshwise.trace.step import StepSignature, TracedStep, open_step, trace_step
from oracle.problem import Problem, Trajectory, run

CLUSTER = cpu_cluster(8)


def parallel_step(problem: Problem, method: Method, num_microbatches: int = 1, **more: Any) -> Any:
    """The step of a problem, parallelised by a method."""
    options = {
        "cluster": CLUSTER,
        "num_microbatches": num_microbatches,
        **problem.options,
        **more,
    }
    return mw.parallelize(problem.step, method=method, **options)


def run_method(
    problem: Problem, method: Method, num_microbatches: int = 1, **more: Any
) -> Trajectory:
    """Run a problem under a method."""
    return run(parallel_step(problem, method, num_microbatches, **more), problem)


def traced(problem: Problem, num_microbatches: int = 1, statistics: Any = "exact") -> TracedStep:
    """The step of a problem as traced for 8 devices; without static arguments."""
    argnums = problem.options.get("batch_argnums", (1,))
    signature = StepSignature(
        batch_argnums=(argnums,) if isinstance(argnums, int) else tuple(argnums),
        batch_dims=problem.options.get("batch_dims", 0),
        donate_argnums="auto",
    )
    args = (problem.state, *problem.calls[0])
    return trace_step(
        open_step(problem.step, args, problem.kwargs, signature),
        num_microbatches=num_microbatches,
        statistics=statistics,
        num_devices=8,
    )


def decided_step(
    step: TracedStep, decision: Any, mesh: Any, compile_with: Any = compile_decided
) -> Callable:
    """A traced step under a decision, as a function of pytrees."""
    devices = concrete_mesh(mesh, jax.devices()[: mesh.num_devices])
    compiled = compile_with(step, decision, mesh, devices)
    places = shardings(decision.inputs, devices)

    def call(*args: Any, **kwargs: Any) -> Any:
        flat, tree = jax.tree.flatten((args, kwargs))
        assert tree == step.in_tree
        return jax.tree.unflatten(step.out_tree, compiled(*jax.device_put(flat, places)))

    return call


def run_random(
    problem: Problem, shape: tuple[int, ...], seed: int, num_microbatches: int = 1
) -> Trajectory:
    """Run a problem under a random legal decision."""
    step, mesh = traced(problem, num_microbatches), CLUSTER.mesh(shape)
    decision = random_decision(step.graph, mesh, random.Random(seed))
    verify_decision(step.graph, decision, mesh)
    return run(decided_step(step, decision, mesh), problem)
