"""Arguments and options that are wrong: calls, batches, micro-batches, memory, pins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import meshwise as mw
from bad_input.case import CLUSTER, STATE, Case, X, plan, step
from meshwise.errors import CallError, InfeasibleError, PinError, PlanError, TraceError


def batches() -> Iterator[Any]:
    yield X


def normalised(state: Any, batch: Any) -> Any:
    shifted = jnp.sort(batch, axis=0) @ state["w"]
    return state, jnp.mean(shifted * batch)


DIVISORS = "; divisors are [1, 2, 4, 8]"
B_IS = "num_microbatches must be a whole number of at least 1, or 'auto', got "
MEMORY_IS = (
    "memory_bytes must be a positive number, the bytes that one device may use, as 16 * 2**30, got "
)

ARGUMENTS = (
    # calls
    Case(
        "missing argument",
        lambda: plan(args=(STATE,)),
        CallError,
        "step() missing 1 required positional argument: 'batch'; call it as step(state",
    ),
    Case(
        "argument too many",
        lambda: plan(args=(STATE, X, X)),
        CallError,
        "step() takes 2 positional arguments but 3 were given; call it as step(state",
    ),
    Case(
        "unknown keyword",
        lambda: plan(kwargs={"lr": X}),
        CallError,
        "step() got an unexpected keyword argument 'lr'; call it as step(state",
    ),
    Case(
        "argument twice",
        lambda: plan(kwargs={"batch": X}),
        CallError,
        "step() got multiple values for argument 'batch'; call it as step(state",
    ),
    Case(
        "missing behind a static one",
        lambda: plan(lambda c, s, b: step(s, b), ("c", STATE), static_argnums=0, batch_argnums=()),
        CallError,
        "missing 1 required positional argument: 'b'; call it as <lambda>(c, s, b)",
    ),
    Case(
        "generator as batch",
        lambda: plan(args=(STATE, batches())),
        TraceError,
        "argument 1 (batch) of type generator is not an array (<generator object batches at "
        "0x{any}); pass one batch of arrays, as next(batches)",
    ),
    Case(
        "texts as batch",
        lambda: plan(args=(STATE, np.array(["a"]))),
        TraceError,
        "argument 1 (batch) of type ndarray is not an array (array(['a'], dtype='<U1')); pass "
        "it through static_argnums, or make it an array",
    ),
    Case(
        "objects in the state",
        lambda: plan(args=({"w": object()}, X)),
        TraceError,
        "argument 0 (state)['w'] of type object is not an array (<object object at 0x{any}); "
        "pass it through static_argnums, or make it an array",
    ),
    Case(
        "unhashable static argument",
        lambda: plan(lambda s, b, c: step(s, b), (STATE, X, {"a": 1}), static_argnums=2),
        TraceError,
        "static argument 2 (c) of <lambda> is a dict, which cannot be hashed",
    ),
    # batches and micro-batches
    Case(
        "no whole micro-batches",
        lambda: plan(num_microbatches=3),
        TraceError,
        "the batch of 8 is not divisible by num_microbatches=3" + DIVISORS,
    ),
    Case(
        "more micro-batches than rows",
        lambda: plan(num_microbatches=16),
        TraceError,
        "the batch of 8 is not divisible by num_microbatches=16" + DIVISORS,
    ),
    Case(
        "empty batch",
        lambda: plan(args=(STATE, X[:0]), num_microbatches=2),
        TraceError,
        "the batch is empty (0 rows), so it has no num_microbatches=2 parts; pass rows, or take "
        "num_microbatches=1",
    ),
    Case(
        "batch without leaves",
        lambda: plan(lambda s, b: (s, jnp.sum(s["w"])), (STATE, {}), num_microbatches=2),
        TraceError,
        "num_microbatches=2, but no argument is batch data; name the batch "
        "arguments with batch_argnums",
    ),
    Case(
        "different batch sizes",
        lambda: plan(
            lambda s, b: (s, jnp.sum(b["x"]) + jnp.sum(b["y"])),
            (STATE, {"x": X, "y": X[:4]}),
            num_microbatches=2,
        ),
        TraceError,
        "batch arguments have different numbers of rows: argument 1 (b)['y'] has 4 (dim 0) where "
        "argument 1 (b)['x'] has 8; give all the same number of rows, or say with batch_dims which "
        "dim is the batch, None for what is not batch data",
    ),
    Case(
        "different numbers of rows",
        lambda: plan(
            lambda s, b: (s, jnp.sum(b["x"] @ s["w"]) + jnp.sum(b["y"] * b["z"])),
            (STATE, {"x": X, "y": X[:4], "z": X}),
        ),
        TraceError,
        "<lambda> cannot be traced (arguments.py:{line} (<lambda>): mul got incompatible shapes "
        "for broadcasting: (4, 4), (8, 4)), and its batch arguments have different numbers of "
        "rows: argument 1 (b)['y'] has 4 (dim 0) where argument 1 (b)['x'] has 8; give all the",
    ),
    Case(
        "what does not separate",
        lambda: plan(normalised, num_microbatches=2),
        TraceError,
        "the step does not separate into micro-batches: sort at arguments.py:{line}",
    ),
    Case("zero micro-batches", lambda: plan(num_microbatches=0), TraceError, B_IS + "0"),
    Case("negative micro-batches", lambda: plan(num_microbatches=-1), TraceError, B_IS + "-1"),
    Case("broken micro-batches", lambda: plan(num_microbatches=1.5), TraceError, B_IS + "1.5"),
    Case("many micro-batches", lambda: plan(num_microbatches="many"), TraceError, B_IS + "'many'"),
    Case("no micro-batches", lambda: plan(num_microbatches=None), TraceError, B_IS + "None"),
    Case(
        "batch dim too large",
        lambda: plan(batch_dims=2),
        TraceError,
        "batch_dims says that dim 2 of argument 1 (batch) is the batch, but its shape is [8, "
        "4]; name one of these dims, from 0 on, or None if it is not batch data",
    ),
    Case(
        "batch dim too small",
        lambda: plan(batch_dims=-3),
        TraceError,
        "batch_dims says that dim -3 of argument 1 (batch) is the batch",
    ),
    Case(
        "broken batch dim",
        lambda: plan(batch_dims=0.5),
        TraceError,
        "batch_dims of argument 1 (batch) is 0.5; it must be the number of a dim, or None for "
        "what is not batch data",
    ),
    Case(
        "donated argument that is not there",
        lambda: plan(donate_argnums=3),
        TraceError,
        "donate_argnums=3 names argument 3, but step got 2 positional arguments; use numbers "
        "from 0 to 1",
    ),
    Case(
        "static argument that is not there",
        lambda: plan(static_argnums=-3),
        TraceError,
        "static_argnums=-3 names argument -3, but step got 2 positional arguments; use numbers "
        "from 0 to 1",
    ),
    # memory
    Case("no memory", lambda: plan(memory_bytes=0), TraceError, MEMORY_IS + "0"),
    Case("negative memory", lambda: plan(memory_bytes=-1), TraceError, MEMORY_IS + "-1"),
    Case(
        "memory that is no number",
        lambda: plan(memory_bytes=float("nan")),
        TraceError,
        MEMORY_IS + "nan",
    ),
    Case("endless memory", lambda: plan(memory_bytes=float("inf")), TraceError, MEMORY_IS + "inf"),
    Case(
        "too little memory",
        lambda: plan(memory_bytes=1),
        InfeasibleError,
        "the arguments of the step that are not batch data (parameters, optimizer state) take "
        "64 B, and the memory of all devices of",
    ),
    Case(
        "memory for no more than the arguments",
        lambda: plan(memory_bytes=48),
        InfeasibleError,
        "into 48 B (48 bytes) per device; the smallest plan found peaks at",
    ),
    # init
    Case(
        "init without a function",
        lambda: mw.parallelize(step, cluster=CLUSTER).init(STATE, X),
        TraceError,
        "init takes the function that makes the state, got {'w': array(",
    ),
    Case(
        "init without a plan",
        lambda: mw.parallelize(step, cluster=CLUSTER).init(lambda: STATE),
        PlanError,
        "init needs to know the other arguments of the step to make a plan; pass their shapes "
        "too: step.init(create_state, key, batch), or call step.plan(state, batch) before",
    ),
    Case(
        "stats of nothing",
        lambda: mw.parallelize(step, cluster=CLUSTER).stats(),
        PlanError,
        "no step has run yet; call the step first",
    ),
    # pins
    Case(
        "pin of an unknown axis",
        lambda: plan(pins={"0/w": P("q")}),
        PinError,
        "pin '0/w' names axis 'q', the mesh has ['x']; use one of these",
    ),
    Case(
        "pins that contradict",
        lambda: plan(pins={"0/w": P("x"), "0/*": P(None, "x")}),
        PinError,
        "pin '0/w': P('x') contradicts '0/*': P(None, 'x') at 0/w of shape [4, 4]; "
        "let only one of the patterns match it, or make them agree",
    ),
    Case(
        "pin of nothing",
        lambda: plan(pins={"0/kernel": P("x")}),
        PinError,
        "pin '0/kernel' names no argument; the nearest are 0/w, 1",
    ),
    Case(
        "pin that does not divide",
        lambda: plan(lambda v, b: (v, jnp.sum(b)), (np.ones(6), X), pins={"0": P("x")}),
        PinError,
        "pin '0': P('x') does not divide 0 of shape [6]: dim 0 of size 6 in 4 parts "
        "on the mesh {'x': 4}; pin another dim, or pad it",
    ),
)
