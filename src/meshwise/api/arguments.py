"""What `parallelize` is told about the arguments of a step, checked and bound to a call.

Numbers of arguments are those of the user's call, static arguments counted, and may be negative
as in `jax.jit`; a keyword argument that has a position has its number too.  Behind this file the
static arguments are gone and numbers count what is left.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import operator
import os
import tempfile
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from jax.sharding import AbstractMesh, Mesh

from meshwise.errors import CallError, PinError, TraceError
from meshwise.jax_compat.jaxprs import PyTree
from meshwise.request.methods import Auto, IntraOp, Megatron
from meshwise.request.pins import as_pin
from meshwise.trace.call import call
from meshwise.trace.step import Statistics, StepSignature

DEFAULT_BATCH_ARGNUMS = (1,)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentOptions:
    """What a user says of the arguments, of the right types but not yet held against a call.

    Attributes:
        name: Name of the step, for messages.
        parameters: Positional parameters of the step; None if Python cannot tell.
        batch_argnums: Numbers of the batch arguments, as given.
        batch_dims: Their batch dims, as given.
        static_argnums: Numbers of the compile-time constants, as given.
        donate_argnums: Numbers of the arguments whose buffers may be reused, as given.
    """

    name: str
    parameters: tuple[inspect.Parameter, ...] | None
    batch_argnums: tuple[int, ...]
    batch_dims: PyTree
    static_argnums: tuple[int, ...]
    donate_argnums: tuple[int, ...] | Literal["auto"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentSlot:
    """A positional argument of a call: its number, its name if known, and how it is passed."""

    position: int
    name: str | None
    by_keyword: bool = False

    @property
    def label(self) -> str:
        """What messages call it, as `argument 1 (batch)`."""
        return f"argument {self.position}" + (f" ({self.name})" if self.name else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The arguments of one call: static ones with their types, the others.

    Attributes:
        statics: Number, type and value: `1`, `1.0` and `True` are equal but trace differently.
        args: The other positional arguments, in order.
        kwargs: Arguments that have no position.
    """

    statics: tuple[tuple[int, type, Hashable], ...]
    args: tuple[PyTree, ...]
    kwargs: dict[str, PyTree]


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """How every call with the same number of arguments and the same keywords is taken apart.

    Attributes:
        step_name: For messages.
        slots: The positional arguments, static ones too.
        positions: Their numbers, whichever way they are passed.
        static: Numbers of the static ones.
        signature: What is known of the others, counted without the static ones.
    """

    step_name: str
    slots: tuple[ArgumentSlot, ...]
    positions: tuple[int, ...]
    static: frozenset[int]
    signature: StepSignature

    def split(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> Call:
        """Take the arguments of a call apart.

        Raises:
            TraceError: a static argument cannot be hashed.
        """
        if not self.static and not kwargs:
            return Call(statics=(), args=args, kwargs=kwargs)
        rest = dict(kwargs)
        statics: list[tuple[int, type, Hashable]] = []
        others: list[PyTree] = []
        for slot in self.slots:
            value = rest.pop(slot.name) if slot.by_keyword and slot.name else args[slot.position]
            if slot.position in self.static:
                _check_hashable(self.step_name, slot, value)
                statics.append((slot.position, type(value), value))
            else:
                others.append(value)
        return Call(statics=tuple(statics), args=tuple(others), kwargs=rest)

    def function(
        self, fun: Callable[..., PyTree], statics: tuple[tuple[int, type, Hashable], ...]
    ) -> Callable[..., PyTree]:
        """Return the step as a function of what `split` leaves, with its name and parameters."""
        positions = self.positions
        if not statics and positions == tuple(range(len(positions))):
            return fun
        dynamic = [slot for slot in self.slots if slot.position not in self.static]
        values = {position: value for position, _, value in statics}

        def step(*args: PyTree, **kwargs: PyTree) -> PyTree:
            given = values | {s.position: a for s, a in zip(dynamic, args, strict=True)}
            positional: list[PyTree] = []
            for slot in self.slots:
                if slot.position == len(positional):
                    positional.append(given[slot.position])
                else:  # behind a default that the caller left out
                    assert slot.name is not None
                    kwargs[slot.name] = given[slot.position]
            return call(fun, positional, kwargs)

        step.__dict__["__wrapped__"] = _without_partials(fun)
        kind = inspect.Parameter.POSITIONAL_ONLY
        step.__dict__["__signature__"] = inspect.Signature(
            [
                *(inspect.Parameter(s.name or f"argument_{s.position}", kind) for s in dynamic),
                inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
            ]
        )
        return step


def argument_options(
    fun: Callable[..., PyTree],
    *,
    batch_argnums: int | Sequence[int],
    batch_dims: PyTree,
    static_argnums: int | Sequence[int],
    donate_argnums: int | Sequence[int] | Literal["auto"],
) -> ArgumentOptions:
    """Check what can be checked before a call; see `parallelize` for the arguments.

    Raises:
        TraceError: an argument has the wrong type.
    """
    donate = donate_argnums
    return ArgumentOptions(
        name=step_name(fun),
        parameters=positional_parameters(fun),
        batch_argnums=_numbers("batch_argnums", batch_argnums),
        batch_dims=batch_dims,
        static_argnums=_numbers("static_argnums", static_argnums),
        donate_argnums=(
            "auto"
            if isinstance(donate, str) and donate == "auto"
            else _numbers("donate_argnums", donate, ", or 'auto'")
        ),
    )


def positional_parameters(fun: Callable[..., PyTree]) -> tuple[inspect.Parameter, ...] | None:
    """Return the positional parameters of a function; None if Python cannot tell."""
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):
        return None
    return tuple(p for p in parameters if p.kind in _POSITIONAL)


def bind(options: ArgumentOptions, num_args: int, keywords: tuple[str, ...]) -> Binding:
    """Hold the options against a call.

    Args:
        options: What the user says.
        num_args: Arguments passed by position.
        keywords: Names of those passed by keyword.

    Raises:
        TraceError: a number names no argument, or contradicts another option.
    """
    slots = _slots(options, num_args, keywords)
    batch = _resolved("batch_argnums", options.batch_argnums, options, slots)
    static = _resolved("static_argnums", options.static_argnums, options, slots)
    present = {slot.position: slot for slot in slots}
    named = {slot.name for slot in slots}
    unplaced = [k for k in keywords if k not in named]
    _check_batch(options, batch, static)
    for number in batch:
        if number not in present and unplaced and not _has_position(options, number):
            raise TraceError(
                f"batch_argnums names argument {number} of {options.name}, which the call does "
                f"not pass by position; {', '.join(unplaced)} came by keyword and "
                f"{'has' if len(unplaced) == 1 else 'have'} no position, so no batch dim: pass "
                "the batch by position, or say batch_argnums=() if there is no batch data"
            )
    dynamic = [slot.position for slot in slots if slot.position not in static]
    donate = options.donate_argnums
    if not isinstance(donate, str):
        found = _donated(options, donate, slots, static)
        donate = tuple(dynamic.index(n) for n in found if n in present)
    dims = _dims_of_each(options, len(batch))
    pairs = [(dynamic.index(n), d) for n, d in zip(batch, dims, strict=True) if n in present]
    return Binding(
        step_name=options.name,
        slots=slots,
        positions=tuple(slot.position for slot in slots),
        static=frozenset(static),
        signature=StepSignature(
            batch_argnums=tuple(number for number, _ in pairs),
            batch_dims=tuple(dims for _, dims in pairs),
            donate_argnums=donate,
            labels=tuple(present[n].label for n in dynamic),
            parameters=tuple((n, present[n].name or "") for n in dynamic),
        ),
    )


def _check_batch(options: ArgumentOptions, batch: tuple[int, ...], static: tuple[int, ...]) -> None:
    """Check that each batch argument is named once and is no constant."""
    for number in batch:
        if batch.count(number) > 1:
            raise TraceError(
                f"batch_argnums={options.batch_argnums} names argument {number} of {options.name} "
                "twice; name each batch argument once"
            )
        if number in static:
            raise TraceError(
                f"argument {number} of {options.name} is in batch_argnums={options.batch_argnums} "
                f"and in static_argnums={options.static_argnums}, but batch data is not a "
                "compile-time constant; take it out of one of them"
            )


def _donated(
    options: ArgumentOptions,
    numbers: tuple[int, ...],
    slots: tuple[ArgumentSlot, ...],
    static: tuple[int, ...],
) -> tuple[int, ...]:
    """Return the numbers of donated arguments, each once."""
    found = tuple(dict.fromkeys(_resolved("donate_argnums", numbers, options, slots)))
    for number in found:
        if number in static:
            raise TraceError(
                f"argument {number} of {options.name} is in donate_argnums="
                f"{options.donate_argnums} and in static_argnums={options.static_argnums}, "
                "but a compile-time constant has no buffer to donate; take it out of one of "
                "them"
            )
    return found


def step_name(fun: Callable[..., PyTree]) -> str:
    """Name of a step for messages."""
    base = _without_partials(fun)
    return getattr(base, "__name__", type(base).__name__)


def _without_partials(fun: Callable[..., PyTree]) -> Callable[..., PyTree]:
    while isinstance(fun, partial):
        fun = fun.func
    return fun


def _slots(
    options: ArgumentOptions, num_args: int, keywords: tuple[str, ...]
) -> tuple[ArgumentSlot, ...]:
    parameters = options.parameters or ()
    names = [p.name for p in parameters]
    slots = [
        ArgumentSlot(position=n, name=names[n] if n < len(names) else None) for n in range(num_args)
    ]
    slots += [
        ArgumentSlot(position=n, name=p.name, by_keyword=True)
        for n, p in enumerate(parameters)
        if n >= num_args and p.kind == p.POSITIONAL_OR_KEYWORD and p.name in keywords
    ]
    return tuple(slots)


def _resolved(
    option: str, numbers: tuple[int, ...], options: ArgumentOptions, slots: tuple[ArgumentSlot, ...]
) -> tuple[int, ...]:
    """Return the numbers counted from the front; a negative one counts from the end of the call."""
    passed = 1 + slots[-1].position if slots else 0
    takes = max(passed, len(options.parameters or ()))
    found: list[int] = []
    for number in numbers:
        resolved = number + passed if number < 0 else number
        if 0 <= resolved < takes:
            found.append(resolved)
        elif not (option == "batch_argnums" and numbers == DEFAULT_BATCH_ARGNUMS):
            count = f"{takes} positional argument{'' if takes == 1 else 's'}"
            does = "takes" if takes > passed else "got"
            raise TraceError(
                f"{option}={numbers if len(numbers) > 1 else number} names argument {number}, but "
                f"{options.name} {does} {count}; "
                + (f"use numbers from 0 to {takes - 1}" if takes else f"use {option}=()")
            )
        else:
            found.append(resolved)
    return tuple(found)


def _has_position(options: ArgumentOptions, number: int) -> bool:
    return options.parameters is not None and number < len(options.parameters)


def _dims_of_each(options: ArgumentOptions, count: int) -> tuple[PyTree, ...]:
    dims = options.batch_dims
    if not isinstance(dims, (list, tuple)):
        return (dims,) * count
    if len(dims) != count:
        raise TraceError(
            f"batch_dims={dims!r} has {len(dims)} entries for the {count} arguments of "
            f"batch_argnums={options.batch_argnums}; give one for each, or one number for all"
        )
    return tuple(dims)


def _numbers(option: str, value: Any, or_else: str = "") -> tuple[int, ...]:
    """Return an int or a sequence of ints as a tuple."""
    entries: Any = value if isinstance(value, (list, tuple, range)) else (value,)
    try:
        if any(isinstance(entry, bool) for entry in entries):
            raise TypeError
        return tuple(operator.index(entry) for entry in entries)
    except TypeError:
        raise TraceError(
            f"{option} must be the number of an argument or a tuple of such numbers{or_else}, got "
            f"{value!r}"
        ) from None


def _check_hashable(name: str, slot: ArgumentSlot, value: object) -> None:
    try:
        hash(value)
    except TypeError as error:
        raise TraceError(
            f"static {slot.label} of {name} is a {type(value).__name__}, which cannot be hashed "
            f"({value!r:.80}); pass something hashable, as a tuple or a frozen dataclass, or take "
            "it out of static_argnums"
        ) from error


def check_num_microbatches(value: object) -> int | Literal["auto"]:
    """Return the number of micro-batches as an int, or "auto".

    Raises:
        TraceError: it is neither.
    """
    if isinstance(value, str) and value == "auto":
        return "auto"
    count = _index_or_zero(value)
    if count < 1:
        raise TraceError(
            f"num_microbatches must be a whole number of at least 1, or 'auto', got {value!r}"
        )
    return count


def _index_or_zero(value: Any) -> int:
    try:
        return 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return 0


def check_folder(folder: object) -> Path:
    """Return the path of a folder, made if need be: what is kept there comes after planning.

    Raises:
        TraceError: it is no path, a file, or cannot be written to.
    """
    if not isinstance(folder, (str, os.PathLike)) or not os.fspath(folder):
        raise TraceError(f"dump_ilp must be the path of a folder, got {folder!r}")
    path = Path(os.fsdecode(folder))
    if path.exists() and not path.is_dir():
        raise TraceError(f"dump_ilp must be a folder, and {str(path)!r} is a file")
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise TraceError(
            f"dump_ilp: {str(path)!r} cannot be written to: {error.strerror or error}"
        ) from error
    return path


def refuse_unknown_options(unknown: Mapping[str, object], known: Sequence[str]) -> None:
    """Refuse options that `parallelize` does not have.

    Args:
        unknown: Options that it does not have, by name.
        known: Names of those that it has.

    Raises:
        CallError: there is one; it says what may have been meant.
    """
    for name, value in unknown.items():
        for method in (Auto, IntraOp, Megatron):
            if name in {item.name for item in dataclasses.fields(method)}:
                shown = repr(value) if isinstance(value, str | int | tuple) else "..."
                meant = f"it goes to the method, as method=mw.{method.__name__}({name}={shown:.60})"
                break
        else:
            near = difflib.get_close_matches(name, known, 1)
            meant = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
        if name == "mesh":
            meant = (
                "the shape of a mesh goes to the method, as method=mw.IntraOp(mesh_shape="
                f"{_mesh_shape(value)})"
            )
        raise CallError(f"parallelize has no option {name!r}; {meant}")


def _mesh_shape(mesh: object) -> tuple[int, ...]:
    """Return the shape that a user may mean by a mesh; (2, 4) as an example."""
    if isinstance(mesh, Mesh | AbstractMesh):
        return tuple(mesh.shape.values())
    sizes: Any = mesh
    is_shape = isinstance(mesh, tuple | list) and all(type(size) is int for size in sizes)
    return tuple(sizes) if is_shape and sizes else (2, 4)


def check_options(statistics: object, pins: object, memory_bytes: object) -> None:
    """Check the other options of `parallelize`.

    Raises:
        TraceError: the statistics or the memory are not what they can be.
        PinError: the pins are not a mapping of patterns to `PartitionSpec`s or `Pin`s.
    """
    if statistics not in get_args(Statistics):
        raise TraceError(f"microbatch_statistics must be 'exact' or 'local', got {statistics!r}")
    if pins is not None and not (
        isinstance(pins, Mapping) and all(isinstance(pattern, str) for pattern in pins)
    ):
        raise PinError(
            f"pins must map patterns of argument paths to PartitionSpecs, as "
            f"{{'0/params/**/kernel': P('x', None)}}, got {pins!r:.80}"
        )
    for pattern, pin in (pins or {}).items():
        as_pin(pattern, pin)
    known = memory_bytes if isinstance(memory_bytes, (int, float)) else math.nan
    if memory_bytes is not None and (isinstance(known, bool) or not 0 < known < math.inf):
        raise TraceError(
            "memory_bytes must be a positive number, the bytes that one device may use, as "
            f"16 * 2**30, got {memory_bytes!r}"
        )
