"""A step that plans, compiles and runs itself."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial, update_wrapper
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeVar

import jax
from jax.typing import ArrayLike

from meshwise.api.arguments import (
    ArgumentOptions,
    Binding,
    Call,
    bind,
    positional_parameters,
)
from meshwise.api.bound_steps import kept_step
from meshwise.api.distributed_cluster import seen_cluster
from meshwise.api.forbidden_transfers import check_transfers
from meshwise.api.init_state import (
    born_sharded,
    init_call,
    leaves_at,
    num_states,
    planned_for_state,
    state_places,
    states_of,
)
from meshwise.api.job_planning import plan_in_job
from meshwise.api.local_cluster import ONE_CPU, is_one_cpu
from meshwise.api.refusals import without_frames
from meshwise.api.same_arguments import argument_leaves, check_same_arguments
from meshwise.api.several_meshes import moved_to_one_mesh
from meshwise.api.step_record import StepRecord
from meshwise.api.step_tree import StepTree
from meshwise.api.users_mesh import on_users_mesh
from meshwise.errors import (
    CallError,
    NotFiniteError,
    PlanError,
    PlanWarning,
    StateLostError,
    TraceError,
)
from meshwise.jax_compat.contexts import (
    is_jit_disabled,
    is_not_finite,
    own_context,
    trace_context,
    users_mesh,
)
from meshwise.jax_compat.jaxprs import PyTree, is_tracer
from meshwise.plan.plan import Plan
from meshwise.planner.prices import Progress, priced
from meshwise.planner.step import (
    PlannedCall,
    PlannedProgram,
    has_stages,
    placement_of,
    plan_call,
)
from meshwise.planner.step_call import StepCall
from meshwise.request.devices import devices_needed
from meshwise.request.methods import Auto, IntraOp, PlannedStep, Replay
from meshwise.request.placement import Placement
from meshwise.request.plan_request import PlanRequest
from meshwise.runtime.devices import devices_for
from meshwise.runtime.job.job import Job, current_job
from meshwise.simulate.timeline import Timeline
from meshwise.system.progress import say, told_if_slow
from meshwise.trace.call import under_mesh
from meshwise.trace.step import abstract
from meshwise.trace.weak_types import weak_types

# A plan is made before any lowering: what lowers and runs is imported where it is needed.
if TYPE_CHECKING:
    from meshwise.hosts.data.loader import Loader
    from meshwise.runtime.fidelity import StageFidelity
    from meshwise.runtime.step_executable import StepExecutable
    from meshwise.targets.compiler import Listener
    from meshwise.targets.verification import Verification

_Step = TypeVar("_Step", bound="ParallelStep")
_NOT_FITTING = (TypeError, ValueError)
# Attributes of a function of `jax.jit`, and what to use here in their place.
_OF_JIT = {
    "lower": "program_text(...) returns the program, compiled_text(...) what XLA made of it, "
    "verify(...) compiles it for devices that are not here",
    "trace": "plan(...) traces and plans; jax.make_jaxpr(step.__wrapped__)(...) only traces",
    "eval_shape": "use jax.eval_shape(step.__wrapped__, ...)",
    "clear_cache": "call parallelize anew to forget plans and programs",
}


def _users_level() -> int:
    """Return how many calls above its caller the first one is that is not of Meshwise."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals["__name__"].startswith("meshwise."):
        level, frame = level + 1, frame.f_back
    return level


class ParallelStep(PlannedStep):
    """A training step that plans, compiles and runs itself; made by `parallelize`."""

    def __init__(
        self,
        fun: Callable[..., PyTree],
        request: PlanRequest,
        options: ArgumentOptions,
        *,
        is_alone: bool = False,
    ) -> None:
        """Args: the step, what is asked of the plan, what is said of the arguments.

        `is_alone` says that the step runs on the devices of this process, in a job too.
        """
        self._fun = fun
        self._request = request
        self._options = options
        self._is_alone = is_alone
        self._bindings: dict[tuple[int, tuple[str, ...]], Binding] = {}
        self._planned: dict[Hashable, PlannedCall] = {}
        self._executables: dict[Hashable, StepExecutable] = {}
        self._recent: dict[Hashable, StepExecutable] = {}
        self._compared: set[Hashable] = set()
        self._last: StepExecutable | None = None
        self._checkpoint: str | None = None
        self._record = StepRecord()
        self._of_classes: dict[type, ParallelStep] = {}
        update_wrapper(self, fun)

    def __get__(self, instance: object, owner: type | None = None) -> ParallelStep:
        """Return the step of an object, which is a constant of the step, not an argument.

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
        name = self._options.name
        return kept_step(instance, name, id(self), lambda: self._bound_to(instance))

    def __getattr__(self, name: str) -> Any:
        """Say what takes the place of what a function of `jax.jit` has.

        Raises:
            AttributeError: always.
        """
        text = f"a step made by parallelize has no attribute {name!r}"
        raise AttributeError(f"{text}: {_OF_JIT[name]}" if name in _OF_JIT else text)

    def __reduce__(self) -> tuple[Any, ...]:
        """Say what a copy or a pickle holds: the function and the options, not its plans."""
        owner, name = getattr(self._fun, "__self__", None), self._options.name
        if owner is not None and getattr(owner, name, None) is self:
            return getattr, (owner, name)
        again = partial(type(self), is_alone=self._is_alone)
        return again, (self._fun, self._request, self._options)

    def __deepcopy__(self, memo: dict[int, Any]) -> ParallelStep:
        """Return a step of its own; that of a method is one of the copied object."""
        fun = deepcopy(self._fun, memo)
        return type(self)(fun, self._request, self._options, is_alone=self._is_alone)

    def _bound_to(self, instance: object) -> ParallelStep:
        fun = MethodType(self._fun, instance)
        options = replace(self._options, parameters=positional_parameters(fun))
        return type(self)(fun, self._request, options, is_alone=self._is_alone)

    def remade(self, kind: type[_Step]) -> _Step:
        """Return the step as one of another kind, which shares no plans with this one.

        Args:
            kind: A class of steps.
        """
        return kind(self._fun, self._request, self._options, is_alone=self._is_alone)

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Run one step: arrays (of any sharding) in, sharded `jax.Array`s out.

        Under `jax.disable_jit()` the function runs as it stands, as under `jax.jit`.

        Raises:
            NotFiniteError: a result is NaN or infinite, and `jax_debug_nans` or `jax_debug_infs`
                is set.
        """
        if is_jit_disabled():
            return self._run_as_it_stands(args, kwargs)
        begin_s = time.perf_counter()
        binding, call = self._taken_apart(args, kwargs)
        leaves, tree = jax.tree.flatten((call.args, call.kwargs))
        has_meshes = has_stages(self._request.method)
        check_transfers(binding, call, self._options.name, has_stages=has_meshes)
        shape = (tree, binding.positions, call.statics, weak_types(leaves), trace_context())
        with self._explaining_failures():
            results = self._run(binding, call, shape, leaves)
        assert self._last is not None
        self._record.called(self._last, begin_s)
        return results

    def _run(
        self, binding: Binding, call: Call, shape: Hashable, leaves: list[ArrayLike]
    ) -> PyTree:
        recent = self._recent.get(shape)
        if recent is not None:
            try:
                with own_context():
                    out = recent.run(leaves)
            except _NOT_FITTING:
                pass  # other shapes, or arrays that lie elsewhere
            else:
                self._last = recent
                return jax.tree.unflatten(recent.out_tree, on_users_mesh(out))
        if any(map(is_tracer, leaves)):
            raise TraceError(
                f"{self._options.name} is made by parallelize and compiled already, so jax.jit, "
                "jax.grad, jax.vmap and jax.lax.scan cannot go through it; call it with arrays, "
                "and put what is around it into the step itself"
            )
        if any(type(leaf) is jax.ShapeDtypeStruct for leaf in leaves):
            raise CallError(
                f"{self._options.name} runs, so it takes arrays, and this call has a "
                f"jax.ShapeDtypeStruct; {self._options.name}.plan(...) takes shapes"
            )
        key = self._key(binding, call)
        self._compare(key, binding, call)
        from meshwise.runtime.kept_programs import kept_programs

        is_new = key not in self._executables
        self._check_devices(key)
        planned = self._plan(binding, call)
        if is_new and (told := moved_to_one_mesh(leaves, planned.plan)):
            self._tell(told)
        fitting = self._compiled(key, planned)
        self._recent[shape] = self._last = fitting
        with own_context(), kept_programs():  # small ones are compiled when they first run
            out = fitting.run(fitting.place(leaves))
        return jax.tree.unflatten(fitting.out_tree, on_users_mesh(out))

    def _run_as_it_stands(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> PyTree:
        """Run the function without a plan, operation by operation."""
        if self._job() is not None or has_stages(self._request.method):
            raise TraceError(
                f"{self._options.name} runs in several processes or stages, so not under "
                "jax.disable_jit(), where arrays of all meshes would meet in one operation; call "
                f"{self._options.name}.__wrapped__ with arrays of one device, or turn it off"
            )
        return self._fun(*args, **kwargs)

    def _compare(self, key: Hashable, binding: Binding, call: Call) -> None:
        """Compare the arguments of the first call of its kind with those in other processes."""
        job = self._job()
        if job is not None and key not in self._compared:
            leaves = list(argument_leaves(binding, call))
            check_same_arguments(job, self._options.name, leaves)
            self._compared.add(key)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans made so far, oldest first."""
        return tuple(planned.plan for planned in self._planned.values())

    def plan(self, *args: PyTree, **kwargs: PyTree) -> Plan:
        """Return the plan for arguments of these shapes.

        Args:
            *args: Arguments of the step; `ShapeDtypeStruct`s do, no device is used.
            **kwargs: Keyword arguments of the step, likewise.

        Raises:
            TraceError, PinError, InfeasibleError, PlanError: what is asked cannot be had.
        """
        return self._plan(*self._taken_apart(args, kwargs)).plan

    def priced(
        self,
        *args: PyTree,
        rivals: int = 5,
        more_bytes: int | None = 2**30,
        progress: Progress | None = None,
        **kwargs: PyTree,
    ) -> Plan:
        """Return the plan with what other choices would cost, each found by planning again.

        Args:
            *args: As for `plan`.
            rivals: For how many arguments and dense operators, the dearest first, in turn.
            more_bytes: How much more memory of a device is tried, too; None: no more is tried.
            progress: Called before each re-solve with how many are done, how many there are, and
                what comes now.
            **kwargs: As for `plan`.

        Raises:
            PlanError: the plan is replayed, or has stages.
        """
        planned = self._one_program(
            args, kwargs, "prices of other choices are known for plans of one mesh only"
        )
        with own_context():
            return priced(
                planned.traced,
                planned.plan,
                self._request,
                rivals=rivals,
                more_bytes=more_bytes,
                progress=progress,
            )

    def explain(self, *args: PyTree, **options: Any) -> str:
        """Return the text of `priced`, which takes the same arguments.

        Of a plan with stages it is the text of the plan; prices are known on one mesh only.
        """
        asked = {"rivals", "more_bytes", "progress"} & options.keys()
        if not asked and has_stages(self._request.method):
            return self.plan(*args, **options).explain()
        return self.priced(*args, **options).explain()

    def page(self, *args: PyTree, rivals: bool = False, **kwargs: PyTree) -> str:
        """Return the plan as one HTML file with pictures, which fetches nothing.

        Args:
            *args: As for `plan`.
            rivals: Whether the page shows data parallelism, ZeRO and Megatron beside the plan; each
                of them is planned first, with the same costs.
            **kwargs: As for `plan`.

        Raises:
            PlanError: with rivals: the plan is replayed or follows another step.
            ClusterError: with rivals: the plan has stages, and hosts differ.
        """
        from meshwise.planner.rival_methods import rivals_of
        from meshwise.report.html.page import plan_page

        binding, call = self._taken_apart(args, kwargs)
        planned = self._plan(binding, call)
        if not rivals:
            return plan_page(planned.plan)
        with own_context():
            found = rivals_of(planned, self._given(binding, call), self._request)
        return plan_page(planned.plan, rivals=found)

    def init(self, fun: Callable[..., PyTree], *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Create the state where the plan wants it: no device ever holds all of it.

        The state is the first argument of the step that is neither static nor batch data.  Where
        `args` leave out several arguments, as of `step(model, optimizer, batch)`, `fun` makes them
        all: `model, optimizer = step.init(create, key, batch)`.

        Args:
            fun: Makes the state; returns a tuple where the step takes it as several arguments.
            *args: Arguments of `fun`, then the other arguments of the step in their order (shapes
                do), as in `step.init(create_state, key, batch)`.  The latter may be left out if
                the step has a plan for such a state already.
            **kwargs: Arguments of the step that are passed by keyword.

        Raises:
            TraceError: an argument of `fun` is not an array; it makes fewer arguments than are left
                out.
            PlanError: there is no plan for such a state and no arguments to make one.
        """
        fun_args, others, state = init_call(fun, args, self._job(), self._options.name)
        if others or kwargs:
            count = num_states(self._options, len(others), kwargs)
            asked = bind(self._options, len(others) + count, tuple(kwargs))
            places = state_places(asked, count)
            given = list(others)
            parts = states_of(fun, state, asked, places)
            for place, part in zip(places, parts, strict=True):
                given.insert(place.number, part)
            binding, call = self._taken_apart(tuple(given), kwargs)
            executable = self._executable(binding, call)
            leaves = leaves_at(call.args, places)
        else:
            found = planned_for_state(self._planned, state)
            if found is None:
                raise PlanError(
                    "init needs to know the other arguments of the step to make a plan; pass their "
                    "shapes too: step.init(create_state, key, batch), or call step.plan(state, "
                    "batch) before"
                )
            key, leaves = found
            executable = self._compiled(key, self._planned[key])
        wanted = [executable.in_shardings[n] for n in leaves]
        say("making the first state")
        made, in_job = under_mesh(fun, users_mesh()), self._job() is not None
        with own_context():
            return born_sharded(made, fun_args, state, wanted, in_job=in_job)

    def loader(
        self,
        source: Any,
        *args: PyTree,
        seed: int = 0,
        shuffle: bool = True,
        epochs: int | None = None,
        prefetch: int = 2,
        threads: int = 16,
        start: Mapping[str, Any] | None = None,
        **kwargs: PyTree,
    ) -> Loader:
        """Return an iterator over batches, of which each process reads what its devices take.

        `for batch in step.loader(source, state, batch_spec): state, loss = step(state, batch)`.
        The order of the examples is that of `grain.MapDataset.source(source).shuffle(seed)
        .repeat()`: seed and place decide, not the number of processes.  Threads read ahead.

        Args:
            source: The examples: an object with `__len__` and `__getitem__(i)`, safe to ask from
                several threads, that gives the i-th example with the tree of the batch and without
                its batch dim.  Mappings and tuples of such objects give parts of the batch: then
                only those parts are read that are needed.
            *args: Arguments of the step; `ShapeDtypeStruct`s do.
            seed: Decides the order.
            shuffle: Whether the examples are shuffled, anew in each epoch; needs `meshwise[data]`.
            epochs: How often all examples are read; None: without end.
            prefetch: How many batches are read ahead while a step runs.
            threads: How many rows are read at a time.
            start: What `loader.state()` returned when an earlier run ended; None: the beginning.
            **kwargs: Keyword arguments of the step.

        Raises:
            DataError: the source does not fit the batch, or the state the source; the step has no
                batch data; an option is not what it can be.
        """
        from meshwise.api.loading import loader_of
        from meshwise.hosts.data.loader import LoaderOptions

        options = LoaderOptions(
            seed=seed, shuffle=shuffle, epochs=epochs, prefetch=prefetch, threads=threads
        )
        binding, call = self._taken_apart(args, kwargs)
        planned, executable = self._plan(binding, call), self._executable(binding, call)
        return loader_of(source, binding, call, planned.user, executable, options, start)

    def program_text(self, *args: PyTree, **kwargs: PyTree) -> str:
        """Return the explicit program of one device as text, with its collectives.

        Raises:
            PlanError: the step runs as several programs.
        """
        from meshwise.spmd.program import program_text

        planned = self._one_program(
            args,
            kwargs,
            "a pipeline has many programs; compiled_text(...) returns the optimised HLO of each",
        )
        traced, plan = planned.traced, planned.plan
        with own_context():
            return program_text(traced.program, traced.graph, plan.decision, plan.mesh)

    def verify(
        self,
        *args: PyTree,
        target: str | None = None,
        listener: Listener | None = None,
        **kwargs: PyTree,
    ) -> Verification:
        """Compile the plan's programs with a target's own compiler; no device is needed.

        Args:
            *args: Arguments of the step; `ShapeDtypeStruct`s do.
            target: Name of the target, as "h100"; by default that of the plan's cluster.
            listener: Is told the name of each program that is compiled, and what came out.
            **kwargs: Keyword arguments of the step, likewise.

        Returns:
            What the compiler says of memory and collectives, beside what the plan says.

        Raises:
            ClusterError: there is no such target, its compiler is not installed, or it has no
                compiler.
            ProgramError: the compiler refuses the program.
            PlanError: the step follows a pipeline.
        """
        from meshwise.api.verify import verify_planned

        planned = self._plan(*self._taken_apart(args, kwargs))
        with own_context():
            return verify_planned(planned, target, listener)

    def compiled_text(self, *args: PyTree, **kwargs: PyTree) -> dict[str, str]:
        """Optimised HLO of each program, by name."""
        return self._executable(*self._taken_apart(args, kwargs)).compiled_text()

    def measured_peak_bytes(self, *args: PyTree, **kwargs: PyTree) -> int:
        """Memory of one device as XLA reports it for the compiled step, in bytes."""
        return self._executable(*self._taken_apart(args, kwargs)).measured_peak_bytes()

    def measured(self, *args: PyTree, **kwargs: PyTree) -> tuple[PyTree, Timeline]:
        """Run one step of a pipeline with a clock beside it.

        Every mesh waits for each of its instructions, so the step is slower than a plain call,
        which only dispatches them; its results are the same.

        Returns:
            What the step returns, and what each mesh did and when.

        Raises:
            PlanError: the step is no pipeline with gradients.
        """
        from meshwise.runtime.pipeline.executable import PipelineExecutable

        begin_s = time.perf_counter()
        binding, call = self._taken_apart(args, kwargs)
        refusal = PlanError(
            "only a pipeline has a timeline of meshes; time a call and jax.block_until_ready of "
            "what it returns, or ask for stages"
        )
        if not has_stages(self._request.method):
            raise refusal
        self._compare(self._key(binding, call), binding, call)
        executable = self._executable(binding, call)
        if not isinstance(executable, PipelineExecutable):
            raise refusal
        with self._explaining_failures(), own_context():
            results, timeline = executable.measured_run(jax.tree.leaves((call.args, call.kwargs)))
        self._last = executable
        here = frozenset(executable.pipeline.indices)
        self._record.measured(executable, begin_s, timeline, here)
        return jax.tree.unflatten(executable.out_tree, on_users_mesh(results)), timeline

    @contextmanager
    def _explaining_failures(self) -> Iterator[None]:
        last = "" if self._checkpoint is None else f"; the last one is {self._checkpoint}"
        try:
            yield
        except StateLostError as error:
            if error.__cause__ is not None and is_not_finite(error.__cause__):
                gone = f"; the state is gone: restore the last checkpoint{last}"
                raise NotFiniteError(self._is_not_finite + gone) from error
            if not last:
                raise
            raise StateLostError(f"{error}{last}") from error
        except Exception as error:
            if not is_not_finite(error):
                raise
            raise NotFiniteError(self._is_not_finite) from None

    @property
    def _is_not_finite(self) -> str:
        name = self._options.name
        return (
            f"{name} gave a NaN or an infinity, at which jax_debug_nans or jax_debug_infs asks to "
            f"stop; to see the operation, call {name}.__wrapped__ with the same arguments"
        )

    def saved(self, checkpoint: object) -> None:
        """Say where the state was last saved, for the error that tells that it is lost.

        Args:
            checkpoint: A path, or what else names it.
        """
        self._checkpoint = str(checkpoint)

    def fidelity(self, *args: PyTree, **kwargs: PyTree) -> tuple[StageFidelity, ...]:
        """For each stage memory and collectives as predicted, and as compiled."""
        return self._executable(*self._taken_apart(args, kwargs)).fidelity()

    def stats(self) -> dict[str, Any]:
        """Return what is known of the last step's programs and of the hosts: seconds, bytes.

        In a job every process calls it, and all get the same: `hosts` has for each process a
        `HostStats`, and `slowest_host` names the one that the others wait for longest.

        A pipeline adds `bytes_between_meshes` of a step, and of its last *measured* step
        `measured_step_s`, `bubble_share`, and for each mesh `busy_s` and `exposed_s`, the seconds
        in which it waits for a transfer that runs.  Plain calls are not timed mesh by mesh: they
        return before the devices are done.

        Raises:
            PlanError: no step has run.
            ClusterError: a process of the job does not call it.
        """
        if self._last is None:
            raise PlanError("no step has run yet; call the step first")
        return self._record.stats(self._last, self._job(), self._options.name)

    def _taken_apart(
        self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
    ) -> tuple[Binding, Call]:
        given = (len(args), tuple(kwargs))
        binding = self._bindings.get(given)
        if binding is None:
            binding = self._bindings[given] = bind(self._options, *given)
        return binding, binding.split(args, kwargs)

    def _function(self, binding: Binding, call: Call) -> Callable[..., PyTree]:
        """Return the step as a function of the arguments of a call."""
        return binding.function(self._fun, call.statics)

    def _key(self, binding: Binding, call: Call) -> Hashable:
        def named(path: Any, leaf: Any) -> Any:
            part, argument, *rest = path
            label = binding.signature.label(argument.idx) if part.idx == 0 else argument.key
            whole = given[part.idx][argument.idx if part.idx == 0 else argument.key]
            return abstract(leaf, label + jax.tree_util.keystr(tuple(rest)), whole)

        given = (call.args, call.kwargs)
        leaves, tree = jax.tree.flatten(jax.tree_util.tree_map_with_path(named, given))
        avals = tuple((x.shape, x.dtype, x.weak_type) for x in leaves)
        return call.statics, binding.positions, StepTree(tree), avals, trace_context()

    def _plan(self, binding: Binding, call: Call) -> PlannedCall:
        key = self._key(binding, call)
        if key not in self._planned:
            given = self._given(binding, call)
            job, name = self._job(), self._options.name
            request = replace(self._request, placement=self._placement(given))
            with own_context():
                if job is None:
                    with told_if_slow(f"planning {name}"):
                        planned = without_frames(lambda: plan_call(given, request))
                else:
                    planned = without_frames(lambda: plan_in_job(job, name, given, request))
            self._planned[key] = planned
            told = list(planned.plan.warnings)
            if self._request.cluster is seen_cluster and is_one_cpu(planned.plan.cluster):
                told.append(ONE_CPU)
            for text in told:
                self._tell(text)
        return self._planned[key]

    def _tell(self, text: str) -> None:
        warnings.warn(f"{self._options.name}: {text}", PlanWarning, stacklevel=_users_level())

    def _placement(self, given: StepCall) -> Placement | None:
        """Return where the first plan for such a state has it, so that it stays there."""
        if not isinstance(self._request.method, (Auto, IntraOp)):
            return None  # where state lies does not depend on the batch, or is given
        places = (placement_of(planned, given) for planned in self._planned.values())
        return next((place for place in places if place is not None), None)

    def _job(self) -> Job | None:
        """Return the processes that run the step together; None if this one runs it alone."""
        return None if self._is_alone else current_job()

    def _given(self, binding: Binding, call: Call) -> StepCall:
        """Return a call as planning takes it."""
        return StepCall(
            fun=under_mesh(self._function(binding, call), users_mesh()),
            args=call.args,
            kwargs=call.kwargs,
            signature=binding.signature,
        )

    def _one_program(
        self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree], refusal: str
    ) -> PlannedProgram:
        """Return the plan of a step that is one program, or an error before anything is planned."""
        if not has_stages(self._request.method):
            planned = self._plan(*self._taken_apart(args, kwargs))
            if isinstance(planned, PlannedProgram):
                return planned
        raise PlanError(refusal)

    def _executable(self, binding: Binding, call: Call) -> StepExecutable:
        key = self._key(binding, call)
        self._check_devices(key)
        return self._compiled(key, self._plan(binding, call))

    def _check_devices(self, key: Hashable) -> None:
        """Refuse to plan what could not run, for too few devices."""
        method, cluster = self._request.method, self._request.cluster
        is_given = isinstance(method, Replay) or cluster is not seen_cluster
        if is_given and key not in self._planned:
            devices_for(devices_needed(method, cluster), self._job())

    def _compiled(self, key: Hashable, planned: PlannedCall) -> StepExecutable:
        from meshwise.api.compilation import compile_planned
        from meshwise.runtime.kept_programs import kept_programs

        if key not in self._executables:
            say(f"compiling {self._options.name}")
            with own_context(), kept_programs():
                self._executables[key] = compile_planned(planned, self._job())
        return self._executables[key]
