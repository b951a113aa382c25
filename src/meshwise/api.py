"""`parallelize`: a training step written for one device, planned and run on many."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial, update_wrapper
from typing import Any, Literal

import jax
import jax.numpy as jnp

from meshwise.cluster.spec import Cluster
from meshwise.errors import PlanError, TraceError
from meshwise.local_cluster import local_cluster
from meshwise.methods import Auto, Method
from meshwise.plan.plan import Plan
from meshwise.planning import PlanRequest, make_plan
from meshwise.runtime.executable import Executable, compile_step
from meshwise.runtime.hlo import device_peak_bytes
from meshwise.spmd.program import program_text
from meshwise.trace.step import Statistics, StepSignature, TracedStep, abstract, trace_step

_NOT_FITTING = (TypeError, ValueError)


class ParallelStep:
    """A training step that plans, compiles and runs itself; made by `parallelize`."""

    def __init__(
        self,
        fun: Callable[..., Any],
        request: PlanRequest,
        signature: StepSignature,
        static_argnums: tuple[int, ...],
    ) -> None:
        """Args: the step, what is asked of the plan, what is known of the arguments."""
        self._fun = fun
        self._request = request
        self._signature = signature
        self._static_argnums = static_argnums
        self._traced: dict[Any, TracedStep] = {}
        self._plans: dict[Any, Plan] = {}
        self._executables: dict[Any, Executable] = {}
        self._recent: dict[Any, Executable] = {}
        self._last: Executable | None = None
        update_wrapper(self, fun)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step: arrays (of any sharding) in, sharded `jax.Array`s out."""
        statics, args = self._split_static(args)
        leaves, tree = jax.tree.flatten((args, kwargs))
        recent = self._recent.get((tree, statics))
        if recent is not None:
            try:
                out = recent.run(leaves)
            except _NOT_FITTING:
                pass  # other shapes, or arrays that lie elsewhere
            else:
                self._last = recent
                return jax.tree.unflatten(recent.traced.out_tree, out)
        fitting = self._executable(statics, args, kwargs)
        self._recent[(tree, statics)] = self._last = fitting
        out = fitting.run(fitting.place(leaves))
        return jax.tree.unflatten(fitting.traced.out_tree, out)

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for arguments of these shapes; `ShapeDtypeStruct`s do, no device is used."""
        statics, args = self._split_static(args)
        return self._plan(statics, args, kwargs)[1]

    def init(self, fun: Callable[..., Any], *args: Any) -> Any:
        """Create the state where the plan wants it: no device ever holds all of it.

        Args:
            fun: Makes the state, the first argument of the step.
            *args: Arguments of `fun`, then the other arguments of the step (shapes do), as in
                `step.init(create_state, key, batch)`.  The latter may be left out if the step has
                a plan for such a state already.

        Raises:
            PlanError: there is no plan for such a state and no arguments to make one.
        """
        fun_args, others = _split_init_args(fun, args)
        state = jax.eval_shape(fun, *fun_args)
        if others:
            statics, rest = self._split_static((state, *others))
            executable = self._executable(statics, rest, {})
        else:
            executable = self._executable_for_state(state)
        count = len(jax.tree.leaves(state))
        shardings = jax.tree.unflatten(jax.tree.structure(state), executable.in_shardings[:count])
        concrete = jax.tree.map(_zeros_of_spec, fun_args)
        return jax.jit(fun, out_shardings=shardings)(*concrete)

    def program_text(self, *args: Any, **kwargs: Any) -> str:
        """The explicit program of one device as text, with its collectives."""
        statics, args = self._split_static(args)
        traced, plan = self._plan(statics, args, kwargs)
        return program_text(traced.program, traced.graph, plan.decision, plan.mesh)

    def compiled_text(self, *args: Any, **kwargs: Any) -> dict[str, str]:
        """Optimised HLO of each program, by name."""
        statics, args = self._split_static(args)
        return {"step": self._executable(statics, args, kwargs).compiled.as_text()}

    def measured_peak_bytes(self, *args: Any, **kwargs: Any) -> int:
        """Memory of one device as XLA reports it for the compiled step, in bytes."""
        statics, args = self._split_static(args)
        return device_peak_bytes(self._executable(statics, args, kwargs).compiled)

    def stats(self) -> dict[str, float]:
        """What is known of the last step's program: seconds, bytes.

        Raises:
            PlanError: no step has run.
        """
        if self._last is None:
            raise PlanError("no step has run yet; call the step first")
        return {
            "predicted_step_time_s": self._last.plan.step_time_s,
            "predicted_peak_bytes": float(self._last.plan.peak_bytes),
            "measured_peak_bytes": float(device_peak_bytes(self._last.compiled)),
            "compile_s": self._last.compile_s,
        }

    def _split_static(self, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        if not self._static_argnums:
            return (), args
        statics = tuple((n, args[n]) for n in self._static_argnums if n < len(args))
        rest = tuple(a for n, a in enumerate(args) if n not in self._static_argnums)
        return statics, rest

    def _bound(self, statics: Any) -> Callable[..., Any]:
        if not statics:
            return self._fun
        return partial(_call_with_statics, self._fun, statics)

    def _key(self, statics: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        leaves, tree = jax.tree.flatten(jax.tree.map(abstract, (args, dict(kwargs))))
        return statics, tree, tuple((x.shape, x.dtype, x.weak_type) for x in leaves)

    def _plan(
        self, statics: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[TracedStep, Plan]:
        key = self._key(statics, args, kwargs)
        if key not in self._plans:
            signature = _without_statics(self._signature, self._static_argnums)

            def trace(num_microbatches: int, num_devices: int) -> TracedStep:
                return trace_step(
                    self._bound(statics),
                    args,
                    kwargs,
                    signature,
                    num_microbatches=num_microbatches,
                    statistics=self._request.statistics,
                    num_devices=num_devices,
                )

            self._traced[key], self._plans[key] = make_plan(trace, self._request)
        return self._traced[key], self._plans[key]

    def _executable(
        self, statics: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Executable:
        key = self._key(statics, args, kwargs)
        if key not in self._executables:
            traced, plan = self._plan(statics, args, kwargs)
            self._executables[key] = compile_step(traced, plan)
        return self._executables[key]

    def _executable_for_state(self, state: Any) -> Executable:
        wanted = [(x.shape, x.dtype) for x in jax.tree.leaves(state)]
        for key in self._plans:
            traced = self._traced[key]
            if [(a.shape, a.dtype) for a in traced.in_avals[: len(wanted)]] == wanted:
                if key not in self._executables:
                    self._executables[key] = compile_step(traced, self._plans[key])
                return self._executables[key]
        raise PlanError(
            "init needs to know the other arguments of the step to make a plan; pass their shapes "
            "too: step.init(create_state, key, batch), or call step.plan(state, batch) before"
        )


def _call_with_statics(fun: Callable[..., Any], statics: Any, *args: Any, **kwargs: Any) -> Any:
    merged = list(args)
    for position, value in statics:
        merged.insert(position, value)
    return fun(*merged, **kwargs)


def _without_statics(signature: StepSignature, static_argnums: tuple[int, ...]) -> StepSignature:
    """The signature with argument numbers counted without the static arguments."""
    if not static_argnums:
        return signature

    def shifted(number: int) -> int:
        return number - sum(s < number for s in static_argnums)

    donate = signature.donate_argnums
    return StepSignature(
        batch_argnums=tuple(map(shifted, signature.batch_argnums)),
        batch_dims=signature.batch_dims,
        donate_argnums=donate if donate == "auto" else tuple(map(shifted, donate)),
    )


def _split_init_args(
    fun: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Arguments of `fun`, and the rest; a `fun` that takes all of them shares the last ones."""
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):
        return args, ()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = sum(p.default is p.empty for p in positional)
    takes_any = any(p.kind == p.VAR_POSITIONAL for p in parameters)
    if not takes_any and len(args) > len(positional):
        return args[: len(positional)], args[len(positional) :]
    if len(args) > required and not takes_any:
        return args[:required], args[required:]
    return args, args[1:]


def _zeros_of_spec(leaf: Any) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jnp.zeros(leaf.shape, leaf.dtype)
    return leaf


def parallelize(
    fun: Callable[..., Any] | None = None,
    *,
    method: Method | None = None,
    cluster: Cluster | None = None,
    num_microbatches: int | Literal["auto"] = 1,
    batch_argnums: int | Sequence[int] = (1,),
    batch_dims: Any = 0,
    microbatch_statistics: Statistics = "exact",
    static_argnums: int | Sequence[int] = (),
    donate_argnums: int | Sequence[int] | Literal["auto"] = "auto",
    pins: Mapping[str, Any] | None = None,
    memory_bytes: int | None = None,
) -> Any:
    """Parallelise a training step; decorator or call.

    Args:
        fun: The step: any function of pytrees of arrays, as `step(state, batch)`.
        method: How the plan is found; `Auto()` by default.
        cluster: What to plan for; `Cluster.local()`, the devices of this process, by default.
        num_microbatches: In how many parts the batch runs, one after the other; "auto" takes the
            fewest that fit into memory.
        batch_argnums: Positional arguments that are batch data.
        batch_dims: Their batch dim: a number, or a pytree prefix (None: not batch data).
        microbatch_statistics: "exact": the result is that of the full batch, and what does not
            separate is an error; "local": statistics of each micro-batch, results averaged.
        static_argnums: Positional arguments that are compile-time constants.
        donate_argnums: Arguments whose buffers may be reused; "auto": state that the step
            returns with the same tree, shapes and dtypes.
        pins: Layouts that are fixed: path pattern of an argument, as "0/params/**/kernel", to a
            `PartitionSpec` of mesh axis names.
        memory_bytes: What one device may use; the cluster's by default.

    Returns:
        A `ParallelStep`, called like `fun`.

    Raises:
        TraceError, PinError, InfeasibleError, ClusterError: when the first call or `plan` finds
            that the step, the pins, the memory or the devices do not allow what is asked.
    """
    if fun is None:
        return partial(
            parallelize,
            method=method,
            cluster=cluster,
            num_microbatches=num_microbatches,
            batch_argnums=batch_argnums,
            batch_dims=batch_dims,
            microbatch_statistics=microbatch_statistics,
            static_argnums=static_argnums,
            donate_argnums=donate_argnums,
            pins=pins,
            memory_bytes=memory_bytes,
        )
    if num_microbatches != "auto" and num_microbatches < 1:
        raise TraceError(f"num_microbatches must be at least 1 or 'auto', got {num_microbatches}")
    request = PlanRequest(
        method=Auto() if method is None else method,
        cluster=local_cluster if cluster is None else lambda: cluster,
        num_microbatches=num_microbatches,
        statistics=microbatch_statistics,
        pins=dict(pins or {}),
        memory_bytes=memory_bytes,
    )
    signature = StepSignature(
        batch_argnums=_numbers(batch_argnums),
        batch_dims=batch_dims,
        donate_argnums="auto" if donate_argnums == "auto" else _numbers(donate_argnums),
    )
    return ParallelStep(fun, request, signature, tuple(sorted(_numbers(static_argnums))))


def _numbers(value: int | Sequence[int]) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)
