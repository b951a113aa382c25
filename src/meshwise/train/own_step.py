"""A step of the user's own, `--step module:make`: `make()` returns `(step, state, batch)`.

- `step(state, batch)` returns the new state and the loss, or a mapping that has it as "loss".
- `state` is a function that makes the first state from a key, or its arrays.
- `batch` is a function that returns the whole batch of a step by its number, counted from 0.

To plan without training, shapes of the state and of a batch are enough.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial, wraps
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from meshwise.api.parallel_step import ParallelStep
from meshwise.api.static_leaves import with_static_leaves, without_static_leaves
from meshwise.errors import TraceError
from meshwise.jax_compat.jaxprs import PyTree
from meshwise.trace.libraries import library_of
from meshwise.trace.step import StepSignature, abstract, result_shapes
from meshwise.train.options import TrainOptions
from meshwise.train.training import Training
from meshwise.units import bytes_text, counted

_SIGNATURE = StepSignature(
    batch_argnums=(1,), batch_dims=0, donate_argnums="auto", labels=("state", "batch")
)


class MadeStep(NamedTuple):
    """What `make()` returned.

    Attributes:
        step: `(state, batch) -> (state, result)`.
        state: A function of a key, arrays, or shapes.
        batch: A function of the number of the step, arrays, or shapes.
    """

    step: Callable[..., PyTree]
    state: PyTree
    batch: PyTree

    def shapes(self) -> tuple[PyTree, PyTree]:
        """Return shapes of the state and of the batch of the first step.

        Raises:
            TraceError: they do not consist of arrays.
        """
        state, batch = self.state, self.batch
        if is_function(state):
            # Traced, so that no device makes a key.
            state = jax.eval_shape(lambda: self.state(jax.random.key(0)))
        if is_function(batch):
            batch = batch(0)
        return (
            jax.tree.map(partial(abstract, where="a leaf of the state"), state),
            jax.tree.map(partial(abstract, where="a leaf of the batch"), batch),
        )


def is_function(value: PyTree) -> bool:
    """Return whether a value is a function, and no module that holds arrays.

    Args:
        value: A function or a pytree.
    """
    return callable(value) and jax.tree_util.all_leaves([value])


def made_step(name: str) -> MadeStep:
    """Import a module, call its function, and return what it made.

    Args:
        name: As "my_module:make" or "folder/file.py:make".

    Raises:
        TraceError: there is no such module or function, or it does not return what it should.
    """
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise _wrong(name, "it names no function; write it as my_module:make or file.py:make")
    module = _module(name, place)
    try:
        make = getattr(module, attribute)
    except AttributeError as error:
        like = get_close_matches(attribute, dir(module))
        there = f"; it has {', '.join(like)}" if like else ""
        raise _wrong(name, f"{module.__file__} has no {attribute!r}{there}") from error
    _check_takes(name, repr(attribute), make, ())
    made: Any = make()
    if not isinstance(made, tuple) or len(made) != 3:
        what = f"a tuple of {len(made)}" if isinstance(made, tuple) else f"{type(made).__name__}"
        raise _wrong(name, f"it must return (step, state, batch), and returned {what}")
    step, state, batch = made
    if isinstance(step, ParallelStep):
        raise _wrong(name, "its step is parallelised already; return the function for one device")
    _check_takes(name, "the step", step, ("state", "batch"))
    if is_function(state):
        _check_takes(name, "the function that makes the state", state, ("key",))
    if is_function(batch):
        _check_takes(name, "the function that returns a batch", batch, ("number",))
    return MadeStep(*_of_arrays(step, state), batch)


def _of_arrays(step: Callable[..., PyTree], state: PyTree) -> tuple[Callable[..., PyTree], PyTree]:
    """Return a step of arrays, and its state: constants in modules of Equinox are static."""

    def taken(tree: PyTree) -> PyTree:
        return with_static_leaves(tree, "the step") if library_of(tree) == "eqx" else tree

    @wraps(step)
    def of_arrays(state: PyTree, batch: PyTree) -> PyTree:
        results = step(without_static_leaves(state), batch)
        if not isinstance(results, tuple) or len(results) != 2:
            return results
        return taken(results[0]), taken(results[1])

    if not is_function(state):
        return of_arrays, taken(state)

    @wraps(state)
    def create(key: PyTree) -> PyTree:
        return taken(state(key))

    return of_arrays, create


def own_training(options: TrainOptions) -> Training:
    """Return the training of a step of the user's own.

    Everything is tried with shapes, before any device is used.

    Args:
        options: The function in `step`, and the seed of the key from which the state is made.

    Raises:
        TraceError: there is no such function, or what it makes cannot be trained.
    """
    name = options.step or ""
    made = made_step(name)
    if not is_function(made.batch):
        raise _wrong(
            name,
            "its batch must be a function of the number of the step, so that a run that is resumed "
            f"goes on with the same batches, and is {type(made.batch).__name__}; to train on one "
            "batch only, return lambda number: batch",
        )
    _check_arrays(name, made.state)
    state, batch = made.shapes()
    _check_sizes(name, state)
    _check_result(name, result_shapes(made.step, (state, batch), _SIGNATURE), state)
    tree = jax.tree.structure(state)

    def create(key: jax.Array) -> PyTree:
        # Static parts that are made anew by each call, as an optimizer, would be another state.
        return jax.tree.unflatten(tree, jax.tree.leaves(made.state(key)))

    is_created = is_function(made.state)
    if not jax.tree.leaves(state):
        raise _wrong(name, "its state holds no array, so there is nothing to train")
    sizes = [leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)]
    rows = next((leaf.shape[0] for leaf in jax.tree.leaves(batch) if leaf.shape), 1)
    return Training(
        name=name,
        about=f"a state of {bytes_text(sum(sizes))} in {counted(len(sizes), 'array')}",
        amount=counted(rows, "row"),
        step=made.step,
        create=create if is_created else _unchanged,
        # From the host, since arrays that are bound to a device go to no other.
        seed=jax.random.key(options.seed) if is_created else jax.device_get(made.state),
        batch=made.batch,
        loss=loss_in,
        shapes=(state, batch),
        num_units=rows,
        unit="rows",
        identity={
            **options.identity(),
            **{f"state{path}": text for path, text in _texts(state).items()},
            **{f"batch{path}": text for path, text in _texts(batch).items()},
        },
    )


def loss_in(result: PyTree) -> PyTree:
    """Return the loss in what a step returns beside its state.

    Args:
        result: The loss, or a mapping that has it as "loss".
    """
    return result["loss"] if isinstance(result, Mapping) else result


def _unchanged(state: PyTree) -> PyTree:
    return state


def _module(name: str, place: str) -> ModuleType:
    """Import a module by its name or its file, whose folder comes first where it imports.

    Raises:
        TraceError: there is none.
    """
    path = Path(place).absolute()
    if place.endswith(".py") and not path.is_file():
        raise _wrong(name, f"there is no file {path}")
    try:
        return _of_file(path) if place.endswith(".py") else _of_name(place)
    except ModuleNotFoundError as error:
        if f"{place}.".startswith(f"{error.name}."):
            raise _wrong(
                name,
                f"there is no module {error.name!r} in {Path.cwd()} or installed; a file is named "
                "by its path, as folder/file.py:make",
            ) from error
        raise _wrong(name, f"{place} imports {error.name}, which is not there") from error


def _of_name(place: str) -> ModuleType:
    sys.path.insert(0, "")
    return importlib.import_module(place)


def _of_file(path: Path) -> ModuleType:
    sys.path.insert(0, str(path.parent))
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    # Its classes and the files beside it find it by its name, unless that is taken.
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def _check_takes(name: str, what: str, fun: Any, arguments: tuple[str, ...]) -> None:
    """Check that something is a function of so many arguments.

    Raises:
        TraceError: it is not.
    """
    told = f"takes ({', '.join(arguments)})" if arguments else "takes no arguments"
    if not callable(fun):
        raise _wrong(name, f"{what} must be a function that {told}, and is {type(fun).__name__}")
    try:
        signature = inspect.signature(fun)
    except (TypeError, ValueError):
        return  # Some functions of C do not say.
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise _wrong(name, f"{what} must be a function that {told}, and is {signature}") from error


def _check_arrays(name: str, state: PyTree) -> None:
    """Check that a state that is no function has values.

    Raises:
        TraceError: a leaf is only a shape.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise _wrong(
                name,
                f"state{jax.tree_util.keystr(path)} is only a shape; to train, give arrays, or a "
                "function of a key that makes the state",
            )


def _check_sizes(name: str, state: PyTree) -> None:
    """Check that checkpoints can hold a state.

    Raises:
        TraceError: a leaf has no element.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if not leaf.size:
            raise _wrong(
                name,
                f"state{jax.tree_util.keystr(path)} of shape {leaf.shape} has no element, which "
                "no checkpoint can hold; leave it out of the state",
            )


def checked_step(name: str, step: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Return a step that is refused, when it is traced, if it could not be trained.

    Args:
        name: As it was given, as "my_module:make".
        step: `(state, batch) -> (state, result)`.

    Returns:
        The same function of arrays.  It raises `TraceError` where `own_training` would.
    """

    @wraps(step)
    def checked(state: PyTree, batch: PyTree) -> PyTree:
        results = step(state, batch)
        _check_result(name, *jax.tree.map(_shape, (results, state)))
        return results

    return checked


def _shape(leaf: Any) -> Any:
    """Return the shape of an array or a number; what is neither stays, for the planner to name."""
    try:
        aval = jax.typeof(leaf)
    except TypeError:
        return leaf
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _check_result(name: str, results: Any, state: PyTree) -> None:
    """Check that a step returns a state as it takes it, and a loss.

    Args:
        name: As it was given.
        results: Shapes of what it returns.
        state: Shapes of what it takes.

    Raises:
        TraceError: it does not.
    """
    if not isinstance(results, tuple) or len(results) != 2:
        many = f" of {len(results)}" if isinstance(results, tuple) else ""
        raise _wrong(
            name,
            f"the step must return (state, loss), and returns {type(results).__name__}{many}; more "
            'than the loss is told as (state, {"loss": loss, ...})',
        )
    taken, returned, beside = map(_texts, (state, *results))
    if returned != taken == beside:
        raise _wrong(name, "the step returns (loss, state); return (state, loss)")
    for path in [*taken, *returned]:
        if taken.get(path) != returned.get(path):
            raise _wrong(
                name,
                f"the step must return a state as it takes it: state{path} is "
                f"{taken.get(path, 'not there')} before, {returned.get(path, 'not there')} after",
            )
    if jax.tree.structure(results[0]) != jax.tree.structure(state):
        raise _wrong(name, "the step must return a state of the same types as it takes it")
    loss = results[1]
    if isinstance(loss, Mapping) and "loss" not in loss:
        raise _wrong(name, f'the step returns no "loss" among {", ".join(map(repr, loss))}')
    loss = loss_in(loss)
    is_array = isinstance(loss, jax.ShapeDtypeStruct)
    if not is_array or loss.shape or not jnp.issubdtype(loss.dtype, jnp.floating):
        raise _wrong(
            name,
            "the loss must be a real scalar, and is "
            f"{loss.dtype.name if is_array else type(loss).__name__}"
            f"{list(loss.shape) if is_array else ''}; as jnp.mean(...) makes one",
        )


def _texts(tree: PyTree) -> dict[str, str]:
    """Return type and shape of each leaf, by its path."""
    return {
        jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}"
        if isinstance(leaf, jax.ShapeDtypeStruct)
        else type(leaf).__name__
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _wrong(name: str, text: str) -> TraceError:
    return TraceError(f"--step {name}: {text}")
