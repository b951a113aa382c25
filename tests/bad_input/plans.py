"""Meshes, clusters and plans that are wrong."""

from __future__ import annotations

import json
from typing import Any

import jax.numpy as jnp
import numpy as np

import meshwise as mw
from bad_input.case import STATE, Case, X, plan, step
from doubles.golden_plans import golden_plan
from meshwise.cluster.cpu import cpu_cluster
from meshwise.cluster.description.cluster_file import cluster_fields
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import ClusterError, PlanError


def described(**changed: Any) -> ClusterSpec:
    """A cluster of a description in which some numbers of the device are changed."""
    device = {"name": "card", "memory_bytes": 2**34, "memory_bytes_per_s": 7e11, "source": "test"}
    rates = {"flop_per_s": {"float32": 8e12}}
    link = {"latency_s": 3e-6, "bytes_per_s": 1e11} | changed.pop("link", {})
    host = {"num_devices": 4, "link": link, "nic": link, "device": device | rates | changed}
    name, groups = cluster_fields({"num_hosts": 2, "host": host}, "our.toml")
    return ClusterSpec(name=name, groups=groups)


def edited(**changed: Any) -> mw.Plan:
    """A good plan whose JSON was edited; `...` takes a field out."""
    data = json.loads(golden_plan("bad-input").to_json()) | changed
    return mw.Plan.from_json(json.dumps({k: v for k, v in data.items() if v is not ...}))


def edited_stage(**changed: Any) -> mw.Plan:
    (stage,) = json.loads(golden_plan("bad-input").to_json())["stages"]
    return edited(stages=[stage | changed])


def devices_of(count: int) -> Any:
    return mw.parallelize(step, method=mw.DataParallel(), cluster=cpu_cluster(count))(STATE, X)


# What no type checker lets through.
ANY_NUMBER: Any = 8
NO_PLAN: Any = STATE

PLANS = (
    Case(
        "mesh of no devices",
        lambda: plan(method=mw.IntraOp((0,))),
        PlanError,
        "IntraOp(mesh_shape=(0,)): the shape of a mesh is a tuple of sizes of at least 1, as "
        "(2, 4), or None for every view",
    ),
    Case(
        "mesh without axes",
        lambda: plan(method=mw.IntraOp(())),
        PlanError,
        "IntraOp(mesh_shape=()): the shape of a mesh is a tuple of sizes of at least 1",
    ),
    Case(
        "mesh larger than the cluster",
        lambda: plan(method=mw.Megatron(dp=4, tp=4)),
        ClusterError,
        "mesh shape (4, 4) needs 16 devices; cluster '4 virtual CPU devices' has 4 (1 host of 4)",
    ),
    Case(
        "more devices than there are",
        lambda: devices_of(16),
        ClusterError,
        "the plan needs 16 devices, this process sees 8 (cpu); plan for fewer, or for tests set "
        "jax_num_cpu_devices",
    ),
    # clusters
    Case(
        "no devices",
        lambda: cpu_cluster(0),
        ClusterError,
        "a host needs at least one virtual CPU device, got 0",
    ),
    Case(
        "no hosts",
        lambda: mw.Cluster.virtual("0x p3.16xlarge"),
        ClusterError,
        "not a cluster: '0x p3.16xlarge'; write the number of hosts and their kind, as "
        "'8x p3.16xlarge'",
    ),
    Case(
        "unknown host",
        lambda: mw.Cluster.virtual("8x p9"),
        ClusterError,
        "no host 'p9' in the catalog; known: p3.2xlarge, p3.8xlarge, p3.16xlarge",
    ),
    Case(
        "a number as cluster",
        lambda: mw.Cluster.virtual(ANY_NUMBER),
        ClusterError,
        "not a cluster: 8; write it as '8x p3.16xlarge'",
    ),
    Case(
        "no such file",
        lambda: mw.Cluster.from_file("not/there.toml"),
        ClusterError,
        "cannot read cluster file not/there.toml: No such file or directory",
    ),
    Case(
        "bandwidth that is no number",
        lambda: described(memory_bytes_per_s=float("nan")),
        ClusterError,
        "our.toml: host.device: 'memory_bytes_per_s' must be finite and above zero, got nan",
    ),
    Case(
        "negative rate",
        lambda: described(flop_per_s={"float32": -1.0}),
        ClusterError,
        "our.toml: host.device.flop_per_s: 'float32' must be finite and above zero, got -1.0",
    ),
    Case(
        "latency that is no number",
        lambda: described(link={"latency_s": float("nan")}),
        ClusterError,
        "our.toml: host.link: 'latency_s' must be finite and zero or more, got nan",
    ),
    Case(
        "memory of no bytes",
        lambda: described(memory_bytes=0),
        ClusterError,
        "our.toml: host.device: 'memory_bytes' must be a whole number above zero, got 0",
    ),
    Case(
        "hosts that differ, on one mesh",
        lambda: plan(cluster=mw.Cluster.virtual("p3.16xlarge + dgx-a100")),
        ClusterError,
        "the hosts of cluster '1x p3.16xlarge + 1x dgx-a100' differ",
    ),
    Case(
        "a profile as cluster",
        lambda: plan(cluster="profile.json"),
        ClusterError,
        "cluster is the path 'profile.json'; pass cluster=mw.Cluster.from_profile('profile.json')",
    ),
    # plans
    Case(
        "half a plan",
        lambda: mw.Plan.from_json('{"format": "meshwise-plan"'),
        PlanError,
        "a plan must be JSON: ",
    ),
    Case(
        "not a plan",
        lambda: mw.Plan.from_json("[]"),
        PlanError,
        "not a plan: the field 'format' must be 'meshwise-plan'",
    ),
    Case(
        "a number as plan",
        lambda: mw.Plan.from_json(ANY_NUMBER),
        PlanError,
        "a plan is read from a text, got 8 (int)",
    ),
    Case(
        "plan of another version",
        lambda: edited(version=99),
        PlanError,
        "field 'version': this program reads version",
    ),
    Case(
        "plan without a field", lambda: edited(stages=...), PlanError, "field 'stages' is missing"
    ),
    Case(
        "plan with an unknown field", lambda: edited(speed=3), PlanError, "field 'speed' is unknown"
    ),
    Case(
        "plan that takes no number",
        lambda: edited(step_time_s=float("nan")),
        PlanError,
        "field 'step_time_s': expected a finite number, got nan",
    ),
    Case(
        "plan that takes negative time",
        lambda: edited(step_time_s=-1.0),
        PlanError,
        "field 'step_time_s': expected a number, zero or more, got -1.0",
    ),
    Case(
        "plan without stages",
        lambda: edited(stages=[]),
        PlanError,
        "field 'stages': a plan needs at least one stage",
    ),
    Case(
        "plan of no micro-batches",
        lambda: edited(num_microbatches=0),
        PlanError,
        "field 'num_microbatches': expected a whole number above zero, got 0",
    ),
    Case(
        "stage of negative size",
        lambda: edited_stage(temporary_bytes=-1),
        PlanError,
        "field 'stages[0].temporary_bytes': expected a whole number, zero or more, got -1",
    ),
    Case(
        "plan for another program",
        lambda: plan(lambda s, b: (s, jnp.sum(b)), method=mw.Replay(golden_plan("bad-input"))),
        PlanError,
        "the plan is for another step or other shapes: its arguments are the same, and its op",
    ),
    Case(
        "plan for another batch",
        lambda: plan(
            args=(STATE, np.ones((16, 4), np.float32)), method=mw.Replay(golden_plan("bad-input"))
        ),
        PlanError,
        "batch is float32[16, 4] here and float32[8, 4] in the plan; a plan holds for one step and",
    ),
    Case(
        "specs of no plan",
        lambda: mw.partition_specs(NO_PLAN, X),
        PlanError,
        "partition_specs takes a Plan first, got {'w': array(",
    ),
    Case(
        "specs for other arguments",
        lambda: mw.partition_specs(golden_plan("bad-input"), STATE),
        PlanError,
        "the arguments have 1 leaves, the plan is for 2: 1 is missing; pass what the plan was "
        "made for, static arguments left out, or plan again",
    ),
)
