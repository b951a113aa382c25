"""Steps that take objects of a library, of which only the arrays enter the plan."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

from meshwise.api.arguments import DEFAULT_BATCH_ARGNUMS, Binding, Call
from meshwise.api.init_state import (
    init_call,
    num_states,
    planned_for_state,
    split_init_args,
)
from meshwise.api.parallel_step import ParallelStep
from meshwise.api.parallelize import parallelize
from meshwise.errors import TraceError
from meshwise.jax_compat.jaxprs import PyTree
from meshwise.simulate.timeline import Timeline

_Step = TypeVar("_Step", bound="ObjectStep")


class ObjectStep(ParallelStep):
    """A step that is called with objects of a library and traced with trees of arrays."""

    @abstractmethod
    def _arrays(self, value: PyTree) -> PyTree:
        """Return an argument or a result as a tree of arrays; what is one already stays."""

    @abstractmethod
    def _objects(self, arrays: PyTree) -> PyTree:
        """Return what such a tree was made from."""

    def _results(self, taken: tuple[PyTree, ...], given: tuple[PyTree, ...], out: PyTree) -> PyTree:
        """Return what the traced step returns: arguments as the step left them, its result.

        Args:
            taken: The arguments, as trees of arrays.
            given: The objects that the step was called with.
            out: What it returned.
        """
        del taken, given
        return self._arrays(out)

    def _given_back(self, given: tuple[PyTree, ...], out: PyTree) -> PyTree:
        """Return what the caller gets of it, who gave these arguments."""
        del given
        return self._objects(out)

    def _taken_apart(
        self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
    ) -> tuple[Binding, Call]:
        binding, call = super()._taken_apart(args, kwargs)
        values = tuple(map(self._arrays, call.args))
        named = {name: self._arrays(value) for name, value in call.kwargs.items()}
        return binding, replace(call, args=values, kwargs=named)

    def _function(self, binding: Binding, call: Call) -> Callable[..., PyTree]:
        fun = super()._function(binding, call)

        @wraps(fun)
        def step(*args: PyTree, **kwargs: PyTree) -> PyTree:
            objects = tuple(map(self._objects, args))
            named = {name: self._objects(value) for name, value in kwargs.items()}
            out = fun(*objects, **named)
            taken, given = (*args, *kwargs.values()), (*objects, *named.values())
            return self._results(taken, given, out)

        return step

    def _from_caller(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> tuple[Any, ...]:
        """Return the arguments in the order in which the traced step gets them."""
        call = super()._taken_apart(args, kwargs)[1]
        return (*call.args, *call.kwargs.values())

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Run one step: objects with arrays of any sharding in, sharded `jax.Array`s out."""
        out = super().__call__(*args, **kwargs)
        return self._given_back(self._from_caller(args, kwargs), out)

    def measured(self, *args: PyTree, **kwargs: PyTree) -> tuple[PyTree, Timeline]:
        """Run one step of a pipeline with a clock beside it, see `ParallelStep.measured`."""
        out, timeline = super().measured(*args, **kwargs)
        return self._given_back(self._from_caller(args, kwargs), out), timeline

    def init(self, fun: Callable[..., PyTree], *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Create the state where the plan wants it, see `ParallelStep.init`."""
        others = split_init_args(fun, args)[1] if callable(fun) else ()
        count = num_states(self._options, len(others), kwargs) if others or kwargs else 1
        if count > 1:
            self._expect_states(count, len(others))
        elif others or kwargs or self._is_planned_as_one(fun, args):
            return self._objects(super().init(self._made(fun, self._arrays), *args, **kwargs))
        made = super().init(self._made(fun, self._several), *args, **kwargs)
        return tuple(map(self._objects, made))

    def _is_planned_as_one(self, fun: Any, args: tuple[PyTree, ...]) -> bool:
        """Return whether what a function makes is one argument of a step, as far as is known."""
        if not self._planned or not callable(fun):
            return True
        state = init_call(self._made(fun, self._arrays), args, None, self._options.name)[2]
        return planned_for_state(self._planned, state) is not None

    def _made(self, fun: Any, taken: Callable[[PyTree], PyTree]) -> Any:
        """Return a function that takes apart what another one makes; no function stays as it is."""
        if not callable(fun):
            return fun

        @wraps(fun)
        def arrays(*fun_args: PyTree) -> PyTree:
            return taken(fun(*fun_args))

        return arrays

    def _several(self, made: PyTree) -> PyTree:
        """Return what is made for several arguments as a tree of arrays for each."""
        is_several = isinstance(made, tuple | list)
        return tuple(map(self._arrays, made)) if is_several else self._arrays(made)

    def _expect_states(self, count: int, num_others: int) -> None:
        """Learn that a state is several arguments, before they are there; the first ones."""
        if self._options.batch_argnums == DEFAULT_BATCH_ARGNUMS:
            others = self._dynamic(range(count, count + num_others))
            self._options = replace(self._options, batch_argnums=others)

    def _dynamic(self, numbers: Iterable[int]) -> tuple[int, ...]:
        return tuple(n for n in numbers if n not in self._options.static_argnums)

    def _by_number(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> dict[int, PyTree]:
        """Return the arguments by their numbers, also those that are passed by keyword."""
        names = [parameter.name for parameter in self._options.parameters or ()]
        placed = {names.index(name): value for name, value in kwargs.items() if name in names}
        return dict(enumerate(args)) | placed


def parallelized(kind: type[_Step], fun: Callable[..., PyTree], options: dict[str, Any]) -> _Step:
    """Parallelise a step of objects.

    Args:
        kind: How objects become arrays.
        fun: The step.
        options: Those of `parallelize`.

    Raises:
        TraceError: the cluster is one of Ray, whose driver holds no arrays.
        TraceError, PlanError, ClusterError: as `parallelize`.
    """
    step = parallelize(fun, **options)
    if not isinstance(step, ParallelStep):
        raise TraceError(
            "modules stay in the process that makes them, and the driver of a RayCluster holds no "
            "arrays: split the module, as in examples/flax_nnx.py, and pass its arrays to "
            "mw.parallelize"
        )
    return step.remade(kind)
