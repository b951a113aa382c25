"""`parallelize`: a training step written for one device, planned and run on many."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial, update_wrapper
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal

import jax

from meshwise.arguments import (
    DEFAULT_BATCH_ARGNUMS,
    ArgumentOptions,
    Binding,
    Call,
    argument_options,
    bind,
    check_num_microbatches,
    check_options,
    step_name,
)
from meshwise.cluster.spec import Cluster
from meshwise.errors import PlanError, TraceError
from meshwise.init_state import split_init_args, state_place, zeros_of_spec
from meshwise.jax_compat import is_tracer
from meshwise.local_cluster import check_cluster, local_cluster
from meshwise.methods import Auto, Method, asks_for_stages, check_method
from meshwise.plan.plan import Plan
from meshwise.planning import PlanRequest, make_plan
from meshwise.rules.kernel import ForeignRule, check_rules
from meshwise.runtime.hlo import device_peak_bytes
from meshwise.trace.step import Statistics, TracedStep, abstract, trace_step

# A plan is made before any lowering: what lowers and runs is imported where it is needed.
if TYPE_CHECKING:
    from meshwise.runtime.executable import Executable

_NOT_FITTING = (TypeError, ValueError)


class ParallelStep:
    """A training step that plans, compiles and runs itself; made by `parallelize`."""

    def __init__(
        self, fun: Callable[..., Any], request: PlanRequest, options: ArgumentOptions
    ) -> None:
        """Args: the step, what is asked of the plan, what is said of the arguments."""
        self._fun = fun
        self._request = request
        self._options = options
        self._bindings: dict[tuple[int, tuple[str, ...]], Binding] = {}
        self._traced: dict[Any, TracedStep] = {}
        self._plans: dict[Any, Plan] = {}
        self._executables: dict[Any, Executable] = {}
        self._recent: dict[Any, Executable] = {}
        self._last: Executable | None = None
        self._of_classes: dict[type, ParallelStep] = {}
        update_wrapper(self, fun)

    def __get__(self, instance: Any, owner: type | None = None) -> ParallelStep:
        """As a method: a step of the object, which is a constant of the step, not an argument.

        Numbers of arguments count without `self`.  Each object has a step of its own, which it
        keeps as long as it lives.

        Raises:
            TraceError: the object has no place to keep its step.
        """
        if instance is None:
            return self
        if isinstance(instance, type):
            kept = self._of_classes
            return kept.setdefault(instance, kept.get(instance) or self._bound_to(instance))
        try:
            attributes = vars(instance)
        except TypeError:
            raise TraceError(
                f"{self._options.name} is a method of {type(instance).__name__}, whose __slots__ "
                "leave no place for the compiled step; add '__dict__' to them, or parallelize a "
                "function"
            ) from None
        name = f"_parallel_{self._options.name}_{id(self)}"
        kept_step = attributes.get(name)
        if not isinstance(kept_step, _KeptStep) or kept_step.owner is not instance:
            kept_step = attributes[name] = _KeptStep(self._bound_to(instance), instance)
        assert kept_step.step is not None
        return kept_step.step

    def _bound_to(self, instance: Any) -> ParallelStep:
        fun = MethodType(self._fun, instance)
        options = self._options
        return ParallelStep(
            fun,
            self._request,
            argument_options(
                fun,
                batch_argnums=options.batch_argnums,
                batch_dims=options.batch_dims,
                static_argnums=options.static_argnums,
                donate_argnums=options.donate_argnums,
            ),
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step: arrays (of any sharding) in, sharded `jax.Array`s out."""
        binding, call = self._taken_apart(args, kwargs)
        leaves, tree = jax.tree.flatten((call.args, call.kwargs))
        shape = (tree, binding.positions, call.statics)
        recent = self._recent.get(shape)
        if recent is not None:
            try:
                out = recent.run(leaves)
            except _NOT_FITTING:
                pass  # other shapes, or arrays that lie elsewhere
            else:
                self._last = recent
                return jax.tree.unflatten(recent.traced.out_tree, out)
        if any(map(is_tracer, leaves)):
            raise TraceError(
                f"{self._options.name} is made by parallelize and compiled already, so jax.jit, "
                "jax.grad, jax.vmap and jax.lax.scan cannot go through it; call it with arrays, "
                "and put what is around it into the step itself"
            )
        fitting = self._executable(binding, call)
        self._recent[shape] = self._last = fitting
        out = fitting.run(fitting.place(leaves))
        return jax.tree.unflatten(fitting.traced.out_tree, out)

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan for arguments of these shapes; `ShapeDtypeStruct`s do, no device is used."""
        return self._plan(*self._taken_apart(args, kwargs))[1]

    def init(self, fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Create the state where the plan wants it: no device ever holds all of it.

        The state is the first argument of the step that is neither static nor batch data.

        Args:
            fun: Makes the state.
            *args: Arguments of `fun`, then the other arguments of the step in their order (shapes
                do), as in `step.init(create_state, key, batch)`.  The latter may be left out if
                the step has a plan for such a state already.
            **kwargs: Arguments of the step that are passed by keyword.

        Raises:
            TraceError: an argument of `fun` is not an array.
            PlanError: there is no plan for such a state and no arguments to make one.
        """
        if not callable(fun):
            raise TraceError(
                f"init takes the function that makes the state, got {fun!r:.60}; call it as "
                "step.init(create_state, key, batch)"
            )
        fun_args, others = split_init_args(fun, args)
        for position, argument in enumerate(fun_args):
            label = f"argument {position} of {step_name(fun)}"
            jax.tree.map(partial(abstract, where=label), argument)
        state = jax.eval_shape(fun, *fun_args)
        if others or kwargs:
            place = state_place(bind(self._options, len(others) + 1, tuple(kwargs)))
            given = (*others[: place.number], state, *others[place.number :])
            binding, call = self._taken_apart(given, kwargs)
            executable = self._executable(binding, call)
            start = len(jax.tree.leaves(call.args[: place.order]))
        else:
            executable, start = self._executable_for_state(state)
        stop = start + len(jax.tree.leaves(state))
        shardings = jax.tree.unflatten(
            jax.tree.structure(state), executable.in_shardings[start:stop]
        )
        concrete = jax.tree.map(zeros_of_spec, fun_args)
        return jax.jit(fun, out_shardings=shardings)(*concrete)

    def program_text(self, *args: Any, **kwargs: Any) -> str:
        """The explicit program of one device as text, with its collectives."""
        from meshwise.spmd.program import program_text

        traced, plan = self._plan(*self._taken_apart(args, kwargs))
        return program_text(traced.program, traced.graph, plan.decision, plan.mesh)

    def compiled_text(self, *args: Any, **kwargs: Any) -> dict[str, str]:
        """Optimised HLO of each program, by name."""
        return {"step": self._executable(*self._taken_apart(args, kwargs)).compiled.as_text()}

    def measured_peak_bytes(self, *args: Any, **kwargs: Any) -> int:
        """Memory of one device as XLA reports it for the compiled step, in bytes."""
        return device_peak_bytes(self._executable(*self._taken_apart(args, kwargs)).compiled)

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

    def _taken_apart(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Binding, Call]:
        given = (len(args), tuple(kwargs))
        binding = self._bindings.get(given)
        if binding is None:
            binding = self._bindings[given] = bind(self._options, *given)
        return binding, binding.split(args, kwargs)

    def _key(self, binding: Binding, call: Call) -> Any:
        def named(path: Any, leaf: Any) -> Any:
            part, argument, *rest = path
            label = binding.signature.label(argument.idx) if part.idx == 0 else argument.key
            return abstract(leaf, label + jax.tree_util.keystr(tuple(rest)))

        given = (call.args, call.kwargs)
        leaves, tree = jax.tree.flatten(jax.tree_util.tree_map_with_path(named, given))
        avals = tuple((x.shape, x.dtype, x.weak_type) for x in leaves)
        return call.statics, binding.positions, tree, avals

    def _plan(self, binding: Binding, call: Call) -> tuple[TracedStep, Plan]:
        key = self._key(binding, call)
        if key not in self._plans:

            def trace(num_microbatches: int, num_devices: int) -> TracedStep:
                return trace_step(
                    binding.function(self._fun, call.statics),
                    call.args,
                    call.kwargs,
                    binding.signature,
                    num_microbatches=num_microbatches,
                    statistics=self._request.statistics,
                    num_devices=num_devices,
                    rules=self._request.rules,
                    stages=asks_for_stages(self._request.method),
                )

            self._traced[key], self._plans[key] = make_plan(trace, self._request)
            for text in self._traced[key].warnings:
                warnings.warn(f"{self._options.name}: {text}", stacklevel=4)
        return self._traced[key], self._plans[key]

    def _executable(self, binding: Binding, call: Call) -> Executable:
        from meshwise.runtime.executable import compile_step

        key = self._key(binding, call)
        if key not in self._executables:
            traced, plan = self._plan(binding, call)
            self._executables[key] = compile_step(traced, plan)
        return self._executables[key]

    def _executable_for_state(self, state: Any) -> tuple[Executable, int]:
        """A step that takes such a state, and the position of the state's first leaf."""
        from meshwise.runtime.executable import compile_step

        wanted = [(x.shape, x.dtype) for x in jax.tree.leaves(state)]
        for key in self._plans:
            traced = self._traced[key]
            numbered = jax.tree.unflatten(traced.in_tree, range(len(traced.in_avals)))
            for argument in numbered[0]:
                places = jax.tree.leaves(argument)
                avals = [traced.in_avals[i] for i in places]
                if not places or [(a.shape, a.dtype) for a in avals] != wanted:
                    continue
                if key not in self._executables:
                    self._executables[key] = compile_step(traced, self._plans[key])
                return self._executables[key], places[0]
        raise PlanError(
            "init needs to know the other arguments of the step to make a plan; pass their shapes "
            "too: step.init(create_state, key, batch), or call step.plan(state, batch) before"
        )


class _KeptStep:
    """A step in the attributes of the object whose method it is; a copy of the object has none."""

    def __init__(self, step: ParallelStep | None = None, owner: Any = None) -> None:
        self.step = step
        self.owner = owner

    def __reduce__(self) -> Any:
        return _KeptStep, ()


def parallelize(
    fun: Callable[..., Any] | None = None,
    *,
    method: Method | None = None,
    cluster: Cluster | None = None,
    num_microbatches: int | Literal["auto"] = 1,
    batch_argnums: int | Sequence[int] = DEFAULT_BATCH_ARGNUMS,
    batch_dims: Any = 0,
    microbatch_statistics: Statistics = "exact",
    static_argnums: int | Sequence[int] = (),
    donate_argnums: int | Sequence[int] | Literal["auto"] = "auto",
    pins: Mapping[str, Any] | None = None,
    memory_bytes: int | None = None,
    rules: Mapping[str, ForeignRule] | None = None,
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

    Numbers of arguments count as in `jax.jit`: static arguments too, negative ones from the end
    of the call, and arguments that have a position but are passed by keyword.  Those of a method
    count without `self`, which is a constant of the step.

    Returns:
        A `ParallelStep`, called like `fun`.

    Raises:
        TraceError, PlanError, ClusterError: an option is not what it can be.
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
            rules=rules,
        )
    _check_fun(fun)
    num_microbatches = check_num_microbatches(num_microbatches)
    check_options(microbatch_statistics, pins, memory_bytes)
    checked = None if cluster is None else check_cluster(cluster)
    request = PlanRequest(
        method=Auto() if method is None else check_method(method),
        cluster=local_cluster if checked is None else lambda: checked,
        num_microbatches=num_microbatches,
        statistics=microbatch_statistics,
        pins=dict(pins or {}),
        memory_bytes=memory_bytes,
        rules=check_rules(rules),
    )
    options = argument_options(
        fun,
        batch_argnums=batch_argnums,
        batch_dims=batch_dims,
        static_argnums=static_argnums,
        donate_argnums=donate_argnums,
    )
    return ParallelStep(fun, request, options)


def _check_fun(fun: Any) -> None:
    if isinstance(fun, ParallelStep):
        raise TraceError(
            f"{step_name(fun)} is made by parallelize already; parallelize the function itself"
        )
    if not callable(fun) or isinstance(fun, type):
        raise TraceError(
            f"parallelize takes the step, a function, got {fun!r:.80}; options go by keyword, as "
            "parallelize(step, method=mw.Zero3(), cluster=...)"
        )
