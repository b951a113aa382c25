"""The compiled step: `run_local` under `shard_map` and `jit`, with donation and compile options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
from jax import Array
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jax.stages import Wrapped

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.graph import Graph
from meshwise.graph.layout import Layout
from meshwise.jax_compat.arrays import HOST_MEMORY
from meshwise.jax_compat.jaxprs import weakly_typed
from meshwise.plan.decision import GraphDecision
from meshwise.spmd.lower import run_local
from meshwise.trace.program import Program
from meshwise.trace.step import TracedStep


def partition_spec(layout: Layout, names: Sequence[str]) -> PartitionSpec:
    """Return the PartitionSpec of a layout without partial axes.

    Args:
        layout: The layout.
        names: The names of the mesh axes.

    Returns:
        The spec.
    """
    if layout.partial:
        raise ValueError(f"a partial value has no PartitionSpec: {layout}")
    entries: list[str | tuple[str, ...] | None] = [
        None if not axes else names[axes[0]] if len(axes) == 1 else tuple(names[a] for a in axes)
        for axes in layout.dims
    ]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def placed_sharding(
    mesh: Mesh | AbstractMesh, spec: PartitionSpec, *, in_host: bool
) -> NamedSharding:
    """Return a sharding in the memory of the devices, or of their hosts.

    Args:
        mesh: The mesh.
        spec: How it is split.
        in_host: Whether it lies in the memory of the hosts.
    """
    return NamedSharding(mesh, spec, memory_kind=HOST_MEMORY if in_host else None)


def shardings(
    layouts: Sequence[Layout], mesh: Mesh | AbstractMesh, in_host: Collection[int] = ()
) -> list[NamedSharding]:
    """Return the NamedShardings of layouts on a mesh.

    Args:
        layouts: The layouts.
        mesh: The mesh.
        in_host: Positions of what lies in the memory of the host.

    Returns:
        One sharding for each layout.
    """
    return [
        placed_sharding(mesh, partition_spec(layout, mesh.axis_names), in_host=i in in_host)
        for i, layout in enumerate(layouts)
    ]


def result_shardings(
    graph: Graph, decision: GraphDecision, mesh: Mesh | AbstractMesh
) -> list[NamedSharding]:
    """Return where the results of a step lie: new state where the old lay.

    Args:
        graph: The graph.
        decision: Its decision.
        mesh: The mesh.
    """
    in_host = {j for i, j in graph.aliases if i in decision.in_host}
    return shardings([use.layout for use in decision.outputs], mesh, in_host)


def sharded_function(
    program: Program,
    graph: Graph,
    decision: GraphDecision,
    logical: LogicalMesh,
    mesh: Mesh | AbstractMesh,
    *,
    in_order: bool = False,
    reads_all: bool = False,
) -> Callable[..., tuple[Array, ...]]:
    """Return the step on global arrays: flat arguments to flat results, explicit inside.

    Args:
        program: The flat program.
        graph: Its graph.
        decision: The plan's decision.
        logical: The mesh as planned.
        mesh: A concrete or abstract JAX mesh with the same axis names and sizes.
        in_order: Keep collectives and loops apart by data (`spmd.order`).
        reads_all: For that, read all results of loops, not only small ones.
    """
    names = logical.names

    def tiles(*args: Array) -> tuple[Array, ...]:
        return tuple(
            run_local(
                program, graph, decision, logical, args, in_order=in_order, reads_all=reads_all
            )
        )

    return jax.shard_map(
        tiles,
        mesh=mesh,
        in_specs=tuple(partition_spec(lay, names) for lay in decision.inputs),
        out_specs=tuple(partition_spec(use.layout, names) for use in decision.outputs),
        check_vma=False,
    )


def compile_options(platform: str, num_devices: int) -> dict[str, str | bool]:
    """Return the options that keep XLA from undoing the plan, and let it hide collectives.

    They are set here only.  Source: docs/xla_cpu.md section 1; docs/measurements/overlap.md.

    Args:
        platform: The platform of the devices, as "cpu".
        num_devices: The number of devices of the mesh.

    Returns:
        Options by name.
    """
    if platform == "tpu":
        # It takes sums out of loops, which a plan does itself, and fails in some programs
        # (RET_CHECK in while_loop_all_reduce_code_motion.cc, libtpu 0.0.42.1).
        return {"xla_disable_hlo_passes": "while-loop-all-reduce-code-motion"}
    if platform == "cuda" and num_devices > 1:
        # XLA:GPU turns it on by itself only where it has a model of the collectives: on an H100 the
        # same programs come out, on an A100 nothing was hidden without it.
        return {"xla_gpu_enable_latency_hiding_scheduler": True}
    if platform != "cpu" or num_devices == 1:
        return {}
    return {
        "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
        "xla_disable_hlo_passes": "cse,while-loop-invariant-code-motion,cpu-all-reduce-combiner",
        "xla_cpu_copy_insertion_use_region_analysis": True,
    }


def jitted_step(
    traced: TracedStep,
    decision: GraphDecision,
    logical: LogicalMesh,
    mesh: Mesh | AbstractMesh,
    platform: str,
    *,
    reads_all: bool = False,
) -> Wrapped:
    """Jit a step.

    Args:
        traced: The step.
        decision: The plan's decision.
        logical: The mesh as planned.
        mesh: Its devices, or a mesh without devices where it is only lowered.
        platform: The platform of the devices, as "cpu".
        reads_all: On CPU, collectives wait for loops by reading all of their results.

    Returns:
        The jitted function of flat arguments.
    """
    options = compile_options(platform, logical.num_devices)
    sharded = sharded_function(
        traced.program,
        traced.graph,
        decision,
        logical,
        mesh,
        in_order=platform == "cpu",
        reads_all=reads_all,
    )

    def step(*args: Array) -> tuple[Array, ...]:
        results = enumerate(sharded(*args))
        return tuple(weakly_typed(x) if n in traced.weak_results else x for n, x in results)

    return jax.jit(
        step,
        in_shardings=tuple(shardings(decision.inputs, mesh, decision.in_host)),
        out_shardings=tuple(result_shardings(traced.graph, decision, mesh)),
        donate_argnums=traced.donated,
        compiler_options=options,
    )


def abstract_mesh(logical: LogicalMesh) -> AbstractMesh:
    """Return the mesh without devices, with Auto axes (the default is Explicit since JAX 0.11).

    Args:
        logical: The mesh as planned.

    Returns:
        A mesh for tracing.
    """
    types = (AxisType.Auto,) * len(logical.axes)
    return AbstractMesh(logical.sizes, logical.names, axis_types=types)


def concrete_mesh(logical: LogicalMesh, devices: Sequence[Any]) -> Mesh:
    """Make a JAX mesh of given devices, with Auto axes.

    Args:
        logical: The mesh as planned.
        devices: The devices, row-major.

    Returns:
        The mesh.
    """
    import numpy as np

    grid = np.asarray(devices, dtype=object).reshape(logical.sizes)
    return Mesh(grid, logical.names)


def program_text(
    program: Program, graph: Graph, decision: GraphDecision, logical: LogicalMesh
) -> str:
    """Print the explicit program of a device; this needs no devices.

    Args:
        program: The flat program.
        graph: Its graph.
        decision: The plan's decision.
        logical: The mesh as planned.

    Returns:
        A jaxpr with local shapes and collectives.
    """
    mesh = abstract_mesh(logical)
    specs = [
        jax.ShapeDtypeStruct(program.avals[i].shape, program.avals[i].dtype) for i in program.inputs
    ]
    closed = jax.make_jaxpr(sharded_function(program, graph, decision, logical, mesh))(*specs)
    return str(closed)
