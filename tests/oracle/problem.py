"""A training step with its inputs, and its run on one device, the reference of every comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

# Options of XLA:CPU: one LLVM module, and the emitters without MLIR, which JAX 0.11 has no more.  A
# fifth of the time to compile; not for batched scatters, in which they write beyond the end (JAX
# 0.10.2).
QUICK_OPTIONS: Mapping[str, Any] = MappingProxyType(
    {
        "xla_cpu_parallel_codegen_split_count": 1,
        **({"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else {}),
    }
)


def quick_jit(fun: Callable[..., Any], **options: Any) -> Any:
    """`jax.jit` for what runs once or twice: compiled in a quarter of the time.

    For models, which scatter in the gradients of embeddings and of losses only; see `run_once`.
    """
    return jax.jit(fun, compiler_options=dict(QUICK_OPTIONS), **options)


def quick_options(lowered: Any) -> dict[str, Any]:
    """Options that compile a lowered function soonest, scatters of any kind as users do."""
    return {} if "scatter" in lowered.as_text() else dict(QUICK_OPTIONS)


def run_once(fun: Callable[..., Any], *args: Any) -> Any:
    """The results of a function under `jax.jit`, compiled as quickly as it may be."""
    lowered = jax.jit(fun).lower(*args)
    return lowered.compile(compiler_options=quick_options(lowered))(*args)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is run.

    Attributes:
        step: `(state, *args, **kwargs) -> (state, out)`.
        state: First state.
        calls: Arguments after the state, for each step.
        kwargs: Keyword arguments, the same in each step.
        options: Of `parallelize`: batch_argnums, batch_dims, static_argnums.
        gradient: Reference gradient at `(state, *args)` as a tree whose paths are ends of paths
            of the state; finds the leaves that hold rounding noise only.
    """

    step: Callable[..., Any]
    state: Any
    calls: tuple[tuple[Any, ...], ...]
    kwargs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    gradient: Callable[..., Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """The first state, the last one and the other results of each step."""

    start: Any
    state: Any
    outs: tuple[Any, ...]


def host_copy(tree: Any) -> Any:
    """A tree that no donation can delete: numbers as NumPy, keys as their words."""
    return jax.tree.map(raw, tree)


def raw(leaf: Any) -> np.ndarray[Any, Any]:
    """A leaf as NumPy; a key as its words."""
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def fresh(tree: Any) -> Any:
    """Copies of the arrays of a tree, so that donation leaves the problem as it is."""
    return jax.tree.map(lambda x: x.copy() if isinstance(x, jax.Array) else np.array(x), tree)


def run(step: Callable[..., Any], problem: Problem) -> Trajectory:
    """Run the calls of a problem with any function that is called as its step is."""
    state, outs = fresh(problem.state), []
    for args in problem.calls:
        state, out = step(state, *args, **problem.kwargs)
        outs.append(out)
    return Trajectory(start=host_copy(problem.state), state=state, outs=tuple(outs))


def quick_options_of(problem: Problem) -> dict[str, Any]:
    """Options that compile the step of a problem soonest; none if it scatters."""
    jitted = jax.jit(problem.step, static_argnums=problem.options.get("static_argnums", ()))
    return quick_options(jitted.lower(problem.state, *problem.calls[0], **problem.kwargs))


def reference(problem: Problem, compiler_options: Mapping[str, Any] | None = None) -> Trajectory:
    """The run on one device, full batch, as plain `jax.jit` does it."""
    static = problem.options.get("static_argnums", ())
    options = quick_options_of(problem) if compiler_options is None else dict(compiler_options)
    jitted = jax.jit(problem.step, static_argnums=static, compiler_options=options)
    done = run(jitted, problem)
    return Trajectory(start=done.start, state=host_copy(done.state), outs=host_copy(done.outs))


def noise_leaves(problem: Problem, share: float) -> frozenset[str]:
    """Paths of the leaves whose reference gradient is negligible at the first step."""
    assert problem.gradient is not None
    grads = quick_jit(problem.gradient)(problem.state, *problem.calls[0])
    paths = jax.tree_util.tree_flatten_with_path(host_copy(grads))[0]
    whole = np.sqrt(sum(np.sum(np.square(leaf, dtype=np.float64)) for _, leaf in paths))
    return frozenset(
        jax.tree_util.keystr(path)
        for path, leaf in paths
        if np.linalg.norm(leaf.astype(np.float64)) <= share * whole
    )
