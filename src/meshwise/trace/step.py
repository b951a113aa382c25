"""A user's step -> a flat program and its graph, with micro-batches as a loop if there are any."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import jax
from jax.tree_util import KeyPath

from meshwise.errors import TraceError
from meshwise.graph.buckets import with_buckets
from meshwise.graph.graph import Graph
from meshwise.jax_compat.arrays import has_type
from meshwise.jax_compat.contexts import explicit, is_no_array, is_unbound_axis
from meshwise.jax_compat.cudnn import is_missing_cudnn
from meshwise.jax_compat.jaxprs import Aval, ClosedJaxpr
from meshwise.jax_compat.source_lines import raising_line
from meshwise.plan.spelling import is_told
from meshwise.rules.kernel import ForeignRule
from meshwise.rules.table import RULES
from meshwise.trace.arange import with_batch_dims
from meshwise.trace.call import base, leaf_spans, named
from meshwise.trace.changed_arguments import keeping_arguments
from meshwise.trace.flatten import flatten
from meshwise.trace.libraries import Library, library_of
from meshwise.trace.own_parallel import on_whole_arrays
from meshwise.trace.padding.scopes import nest, scopes_of
from meshwise.trace.program import Program
from meshwise.trace.sink import with_constants_inside
from meshwise.trace.time.analyze import analyze
from meshwise.trace.time.emit import microbatched
from meshwise.trace.time.state import Batch
from meshwise.trace.to_graph import to_graph

Statistics = Literal["exact", "local"]

# Leaves that an error lists.
_LISTED = 4

# In place of a None of batch_dims: JAX takes None for a tree without leaves.
_NOT_BATCH = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSignature:
    """What the caller says about the arguments of a step.

    Attributes:
        batch_argnums: Positional arguments whose leaves are batch data.
        batch_dims: Batch dim: one for all leaves, or a pytree prefix for each batch argument.
        donate_argnums: Positional arguments whose buffers may be reused, or "auto": every
            argument that the step returns with the same tree, shapes and dtypes.
        labels: What messages call the positional arguments, as `argument 1 (batch)`.
        parameters: Number in the user's call, static arguments counted, and name (may be empty)
            of each positional argument.
    """

    batch_argnums: tuple[int, ...]
    batch_dims: Any
    donate_argnums: tuple[int, ...] | Literal["auto"]
    labels: tuple[str, ...] = ()
    parameters: tuple[tuple[int, str], ...] = ()

    def number(self, argnum: int) -> int:
        """Number of an argument in the user's call."""
        return self.parameters[argnum][0] if argnum < len(self.parameters) else argnum

    def written(self, argnum: int) -> str:
        """Return an argument as the step writes it: its name, or `args[0]` where it has none."""
        name = self.parameters[argnum][1] if argnum < len(self.parameters) else ""
        return name or f"args[{self.number(argnum)}]"

    def label(self, argnum: int) -> str:
        """Return what a message calls an argument."""
        return self.labels[argnum] if argnum < len(self.labels) else f"argument {argnum}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """A traced step.

    Attributes:
        program: Flat equations, with the loop over micro-batches inside.
        graph: The graph made from it.
        in_tree: Tree of `(args, kwargs)`.
        out_tree: Tree of the results.
        in_avals: Flat arguments.
        batch_dims: Batch dim of each flat argument that is batch data, by position.
        donated: Positions of flat arguments whose buffers are reused.
        weak_results: Positions of flat results that are weakly typed, as numbers of Python are.
        num_microbatches: B.
        warnings: What the user asked for and does not get.
        parameters: Number and name of each positional argument in the user's call.
        spelling: How the user writes paths of arguments, as `plan.spelling` keeps it.
    """

    program: Program
    graph: Graph
    in_tree: Any
    out_tree: Any
    in_avals: tuple[jax.ShapeDtypeStruct, ...]
    batch_dims: Mapping[int, int]
    donated: tuple[int, ...]
    num_microbatches: int
    warnings: tuple[str, ...] = ()
    parameters: tuple[tuple[int, str], ...] = ()
    spelling: tuple[tuple[str, str], ...] = ()
    weak_results: tuple[int, ...] = ()


def abstract(
    value: object, where: str = "an argument leaf", argument: object = None
) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an argument, without its sharding.

    Args:
        value: The argument, or a leaf of it.
        where: What the message calls it.
        argument: The argument of which it is a leaf.

    Raises:
        TraceError: the value is not an array, or has 64 bits where JAX has them no more.
    """
    try:
        aval = jax.typeof(value) if not isinstance(value, jax.ShapeDtypeStruct) else value
    except TypeError as error:
        what_to_do = "pass it through static_argnums, or make it an array"
        if isinstance(value, Iterator):
            what_to_do = "pass one batch of arrays, as next(batches)"
        elif library_of(argument) == "eqx":
            what_to_do = (
                "use mw.eqx.parallelize in place of mw.parallelize, which takes such leaves for "
                "constants as eqx.filter_jit does, or pass eqx.filter(model, eqx.is_array)"
            )
        raise TraceError(
            f"{where} of type {type(value).__name__} is not an array ({value!r:.80}); {what_to_do}"
        ) from error
    if isinstance(value, jax.Array) and not has_type(aval.dtype):
        raise TraceError(
            f"{where} is of type {aval.dtype}, and enable_x64 is off; call the step under "
            "jax.enable_x64(True), as where the array was made, or make it narrower"
        )
    weak = bool(getattr(aval, "weak_type", False))
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=weak)


def state_bytes(args: Sequence[Any], signature: StepSignature) -> int:
    """Bytes of the positional arguments that are not batch data: parameters, optimizer state.

    Args:
        args: Positional arguments; arrays or `ShapeDtypeStruct`s.
        signature: Which arguments are batch data.
    """
    state = [arg for n, arg in enumerate(args) if n not in signature.batch_argnums]
    leaves = jax.tree.leaves(jax.tree.map(abstract, state))
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStep:
    """A step as JAX traces it, with what the caller said about its flat arguments.

    Attributes:
        closed: Its jaxpr.
        in_tree: Tree of `(args, kwargs)`.
        out_tree: Tree of the results.
        in_avals: Flat arguments.
        out_leaves: Flat results.
        batch_dims: Batch dim of each flat argument that is batch data, by position.
        aliases: Pairs (flat argument, flat result) of the state.
        names: The names of the flat arguments.
        labels: What messages call them, as `argument 1 (batch)['x']`.
        warnings: What the user asked for and does not get.
        parameters: Number and name of each positional argument in the user's call.
        spelling: How the user writes paths of arguments, as `plan.spelling` keeps it.
        joins_experts: Whether the experts of each layer that were found are one operator.
    """

    closed: ClosedJaxpr
    in_tree: Any
    out_tree: Any
    in_avals: tuple[jax.ShapeDtypeStruct, ...]
    out_leaves: tuple[jax.ShapeDtypeStruct, ...]
    batch_dims: Mapping[int, int]
    aliases: tuple[tuple[int, int], ...]
    names: tuple[str, ...]
    labels: tuple[str, ...]
    warnings: tuple[str, ...]
    parameters: tuple[tuple[int, str], ...]
    spelling: tuple[tuple[str, str], ...]
    joins_experts: bool = False

    @property
    def weak_results(self) -> tuple[int, ...]:
        """Positions of flat results that are weakly typed, as numbers of Python are."""
        return tuple(n for n, leaf in enumerate(self.out_leaves) if leaf.weak_type)


def open_step(
    fun: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    signature: StepSignature,
) -> OpenStep:
    """Trace a step at the full batch.

    Args:
        fun: The step, static arguments already bound.
        args: Positional arguments; arrays or `ShapeDtypeStruct`s.
        kwargs: Keyword arguments, likewise.
        signature: Which arguments are batch data or donated.

    Returns:
        The step as JAX sees it.

    Raises:
        TraceError: the step cannot be traced, or returns nothing.
    """
    specs = jax.tree.map(abstract, (tuple(args), dict(kwargs)))
    flat, in_tree = jax.tree.flatten(specs)
    spans = leaf_spans(specs[0])
    labels, batch_dims = _labels(specs, signature), _batch_dims(specs[0], spans, signature)
    rows = {labels[i]: (dim, flat[i].shape[dim]) for i, dim in batch_dims.items()}
    typed = jax.tree.map(explicit, (tuple(args), dict(kwargs)), specs)
    with _explained(base(fun)[1], rows, library_of(specs)):
        step = keeping_arguments(named(fun), signature.label)
        closed, out_shape = jax.make_jaxpr(step, return_shape=True)(*typed[0], **typed[1])
        closed = on_whole_arrays(closed)
    out_leaves, out_tree = jax.tree.flatten(out_shape)
    if not out_leaves:
        raise TraceError(
            f"{base(fun)[1]} returns no array; a step must return its new state and what else is "
            "wanted, as (state, loss): arrays of JAX are not changed in place"
        )
    aliases, unused = _aliases(specs[0], spans, out_shape, signature)
    return OpenStep(
        closed=closed,
        in_tree=in_tree,
        out_tree=out_tree,
        in_avals=tuple(flat),
        out_leaves=tuple(out_leaves),
        batch_dims=batch_dims,
        aliases=aliases,
        names=argument_names(specs, signature),
        spelling=_spelling(specs, signature),
        labels=tuple(labels),
        warnings=tuple(
            f"donate_argnums names {signature.label(argnum)}, but the step returns nothing with "
            "the same tree, shapes and dtypes, so its buffers are not reused; return its new "
            "value, or take it out of donate_argnums"
            for argnum in unused
        ),
        parameters=signature.parameters or tuple((n, "") for n in range(len(args))),
    )


def result_shapes(fun: Callable[..., Any], args: tuple[Any, ...], signature: StepSignature) -> Any:
    """Return the shapes of what a step returns, as `open_step` would trace it.

    Args:
        fun: The step.
        args: Positional arguments; arrays or `ShapeDtypeStruct`s.
        signature: Which arguments are batch data.

    Raises:
        TraceError: its batch arguments have different numbers of rows, and it cannot be traced.
    """
    specs = jax.tree.map(abstract, (tuple(args), {}))
    labels, flat = _labels(specs, signature), jax.tree.leaves(specs)
    dims = _batch_dims(specs[0], leaf_spans(specs[0]), signature)
    rows = {labels[i]: (dim, flat[i].shape[dim]) for i, dim in dims.items()}
    with _explained(base(fun)[1], rows, library_of(specs)):
        return jax.eval_shape(fun, *specs[0])


@contextmanager
def _explained(
    name: str, rows: Mapping[str, tuple[int, int]], library: Library | None
) -> Iterator[None]:
    """Say what a failure of JAX means for a step.

    Args:
        name: The name of the step.
        rows: Batch dim and number of rows of each leaf of the batch, by name.
        library: The library of its modules.
    """
    try:
        yield
    except TraceError:
        raise
    except (TypeError, ValueError) as error:
        unequal = unequal_rows(rows)
        said = str(error).partition("\n")[0].rstrip(".")
        if library == "eqx" and is_no_array(error):
            raise TraceError(
                f"{name} at {raising_line(error)}: {said}; a module of Equinox holds functions and "
                "flags, too: differentiate it with mw.eqx.filter_value_and_grad, and compile parts "
                "of the step with eqx.filter_jit in place of jax.jit"
            ) from error
        if unequal is None:
            raise
        raise TraceError(
            f"{name} cannot be traced ({raising_line(error)}: {said}), and its batch arguments "
            f"have different numbers of rows: {unequal}"
        ) from error
    except NameError as error:
        if not is_unbound_axis(error):
            raise
        raise TraceError(
            f"{name} at {raising_line(error)}: {str(error).partition('.')[0]}; a step sees whole "
            "arrays, as on one device: take the collective out, or give the axis a name with "
            "jax.vmap(..., axis_name=...) or jax.shard_map"
        ) from error
    except RuntimeError as error:
        if not is_missing_cudnn(error):
            raise
        raise TraceError(
            f"{name} asks for attention by cuDNN, which JAX traces only where cuDNN is installed; "
            "on a machine without it, as one that plans for others, write "
            "mw.cudnn_attention(query, key, value, ...) in place of "
            "jax.nn.dot_product_attention(query, key, value, ..., implementation='cudnn')"
        ) from error


def trace_step(
    opened: OpenStep,
    *,
    num_microbatches: int = 1,
    statistics: Statistics = "exact",
    num_devices: int = 1,
    rules: Mapping[str, ForeignRule] | None = None,
) -> TracedStep:
    """Cut a step into micro-batches, and make its program and its graph.

    Args:
        opened: The step as JAX traces it at the full batch.
        num_microbatches: B; 1 leaves the step as it is.
        statistics: "exact", or "local" for statistics of each micro-batch.
        num_devices: Devices of the mesh; rows are interleaved so that any split of the batch
            over them is cut in time without communication.
        rules: Loops of foreign primitives, by name.

    Returns:
        The step with its loop over micro-batches.

    Raises:
        TraceError: the step does not separate into micro-batches, or has no such primitive.
    """
    closed, flat, batch_dims = opened.closed, opened.in_avals, opened.batch_dims
    if rules:
        _check_rules(flatten(closed), rules)
    is_local = statistics == "local" and num_microbatches > 1
    program = with_batch_dims(flatten(closed, rules, mark_results=is_local))
    if num_microbatches > 1:
        batch = _cut(flat, batch_dims, num_microbatches, num_devices, opened.labels)
        block = analyze(program, batch_dims, batch, local_statistics=is_local)
        whole = program
        closed = jax.make_jaxpr(lambda *leaves: microbatched(whole, block, batch, leaves))(*flat)
        _check_avals(closed.out_avals, opened.out_leaves)
        program = flatten(closed)
    program = with_constants_inside(program)
    names = dict(zip(program.inputs, opened.names, strict=True))
    return TracedStep(
        program=program,
        graph=with_buckets(to_graph(program, names=names, aliases=opened.aliases)),
        in_tree=opened.in_tree,
        out_tree=opened.out_tree,
        in_avals=flat,
        batch_dims=batch_dims,
        donated=tuple(position for position, _ in opened.aliases),
        num_microbatches=num_microbatches,
        warnings=opened.warnings,
        parameters=opened.parameters,
        spelling=opened.spelling,
        weak_results=opened.weak_results,
    )


def _check_rules(program: Program, rules: Mapping[str, ForeignRule]) -> None:
    names = {node.name for scope in scopes_of(nest(program)) for node in scope.program.nodes}
    unknown = sorted(set(rules) - names)
    if unknown:
        without = ", ".join(sorted(names - set(RULES))) or "none"
        raise TraceError(
            f"rules={{{unknown[0]!r}: ...}}: the step has no such primitive; of those that it has "
            f"these have no rule: {without}"
        )


def argument_names(given: Any, signature: StepSignature) -> tuple[str, ...]:
    """Return the names of the flat arguments.

    Args:
        given: `(args, kwargs)`.
        signature: What is said of them.
    """
    paths = jax.tree_util.tree_flatten_with_path(given)[0]
    return tuple(_path_name(path, signature) for path, _ in paths)


def _path_name(path: KeyPath, signature: StepSignature) -> str:
    """`(args, kwargs)` path as `0/params/kernel`, with the number of the user's call."""
    part, argument, *rest = path
    first = str(signature.number(argument.idx)) if part.idx == 0 else str(argument.key)
    return "/".join((first, *(jax.tree_util.keystr((key,), simple=True) for key in rest)))


def _spelling(given: Any, signature: StepSignature) -> tuple[tuple[str, str], ...]:
    """Return how the step writes the parts of `(args, kwargs)`, as `plan.spelling` keeps it."""
    found: dict[str, str] = {}
    for (part, argument, *rest), _ in jax.tree_util.tree_flatten_with_path(given)[0]:
        is_positional = part.idx == 0
        path = str(signature.number(argument.idx)) if is_positional else str(argument.key)
        found[path] = signature.written(argument.idx) if is_positional else path
        for key in rest:
            simple = jax.tree_util.keystr((key,), simple=True)
            path, word = f"{path}/{simple}", jax.tree_util.keystr((key,))
            if is_told(simple, word):
                found[path] = word
    return tuple(found.items())


def _labels(specs: Any, signature: StepSignature) -> list[str]:
    """Return what messages call the leaves of `(args, kwargs)`, as `argument 1 (batch)['x']`."""
    paths = jax.tree_util.tree_flatten_with_path(specs)[0]
    return [
        (signature.label(argument.idx) if part.idx == 0 else str(argument.key))
        + jax.tree_util.keystr(tuple(rest))
        for (part, argument, *rest), _ in paths
    ]


def unequal_rows(rows: Mapping[str, tuple[int, int]]) -> str | None:
    """Return which leaves of the batch have other numbers of rows than most; None if none does.

    Args:
        rows: Batch dim and number of rows by the name of the leaf.
    """
    sizes = [size for _, size in rows.values()]
    if len(set(sizes)) < 2:
        return None
    most = max(sizes, key=lambda size: (sizes.count(size), size))
    others = [
        f"{name} has {size} (dim {dim})" for name, (dim, size) in rows.items() if size != most
    ]
    like = next(name for name, (_, size) in rows.items() if size == most)
    return (
        f"{', '.join(others[:_LISTED])}{', ...' if len(others) > _LISTED else ''} where {like} has "
        f"{most}; give all the same number of rows, or say with batch_dims which dim is the batch, "
        "None for what is not batch data"
    )


def _batch_dims(
    args: Sequence[Any], spans: Sequence[tuple[int, int]], signature: StepSignature
) -> dict[int, int]:
    dims: dict[int, int] = {}
    for order, argnum in enumerate(signature.batch_argnums):
        if argnum >= len(args):
            continue
        per_arg = signature.batch_dims
        if isinstance(per_arg, (list, tuple)):
            per_arg = per_arg[order]
        label = signature.label(argnum)
        marked = jax.tree.map(
            lambda d: _NOT_BATCH if d is None else d, per_arg, is_leaf=lambda d: d is None
        )
        try:
            leaves = jax.tree.leaves(jax.tree.broadcast(marked, args[argnum]))
        except ValueError as error:
            raise TraceError(
                f"batch_dims={per_arg!r} does not fit the tree of {label}, "
                f"{jax.tree.structure(args[argnum])}; give one number, or a tree with its keys"
            ) from error
        found = jax.tree_util.tree_flatten_with_path(args[argnum])[0]
        for offset, (dim, (path, leaf)) in enumerate(zip(leaves, found, strict=True)):
            where = label + jax.tree_util.keystr(path)
            if dim is _NOT_BATCH:
                continue
            if not isinstance(dim, int) or isinstance(dim, bool):
                raise TraceError(
                    f"batch_dims of {where} is {dim!r}; it must be the number of a dim, or None "
                    "for what is not batch data"
                )
            rank = len(leaf.shape)
            if rank == 0:
                continue
            if not -rank <= dim < rank:
                raise TraceError(
                    f"batch_dims says that dim {dim} of {where} is the batch, but its shape is "
                    f"{list(leaf.shape)}; name one of these dims, from 0 on, or None if it is not "
                    "batch data"
                )
            dims[spans[argnum][0] + offset] = dim % rank
    return dims


def _cut(
    flat: Sequence[jax.ShapeDtypeStruct],
    batch_dims: Mapping[int, int],
    num_microbatches: int,
    num_devices: int,
    names: Sequence[str],
) -> Batch:
    sizes = {position: flat[position].shape[dim] for position, dim in batch_dims.items()}
    if not sizes:
        raise TraceError(
            f"num_microbatches={num_microbatches}, but no argument is batch data; name the batch "
            "arguments with batch_argnums"
        )
    unequal = unequal_rows({names[i]: (batch_dims[i], size) for i, size in sizes.items()})
    if unequal is not None:
        raise TraceError(f"batch arguments have different numbers of rows: {unequal}")
    (size,) = set(sizes.values())
    if size == 0:
        raise TraceError(
            f"the batch is empty (0 rows), so it has no num_microbatches={num_microbatches} parts; "
            "pass rows, or take num_microbatches=1"
        )
    if size % num_microbatches:
        raise TraceError(
            f"the batch of {size} is not divisible by num_microbatches={num_microbatches}; "
            f"divisors are {[b for b in range(1, size + 1) if size % b == 0][:16]}"
        )
    return Batch(size, num_microbatches, math.gcd(size // num_microbatches, num_devices))


def _aliases(
    args: Sequence[Any],
    spans: Sequence[tuple[int, int]],
    out_shape: Any,
    signature: StepSignature,
) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """Pairs (flat input, flat output) of state that the step returns, arguments donated in vain."""
    parts = (
        list(out_shape)
        if isinstance(out_shape, tuple) and type(out_shape) is tuple
        else [out_shape]
    )
    starts = [start for start, _ in leaf_spans(parts)]
    taken: set[int] = set()
    pairs: list[tuple[int, int]] = []
    if signature.donate_argnums == "auto":
        candidates = [n for n in range(len(args)) if n not in signature.batch_argnums]
    else:
        candidates = list(signature.donate_argnums)
    unused: list[int] = []
    for argnum in candidates:
        arg_leaves = jax.tree.leaves(args[argnum])
        for number, part in enumerate(parts):
            if number in taken or not arg_leaves:
                continue
            if _same_tree(args[argnum], part):
                taken.add(number)
                pairs += [
                    (spans[argnum][0] + k, starts[number] + k) for k in range(len(arg_leaves))
                ]
                break
        else:
            if signature.donate_argnums != "auto" and arg_leaves:
                unused.append(argnum)
    return tuple(pairs), tuple(unused)


def _same_tree(left: Any, right: Any) -> bool:
    if jax.tree.structure(left) != jax.tree.structure(right):
        return False
    return all(
        a.shape == b.shape and a.dtype == b.dtype
        for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    )


def _check_avals(found: Sequence[Aval], wanted: Sequence[jax.ShapeDtypeStruct]) -> None:
    for position, (a, b) in enumerate(zip(found, wanted, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            raise TraceError(
                f"internal: result {position} became {a.str_short()} under micro-batches, "
                f"expected {b.dtype}{list(b.shape)}; please report the step"
            )
