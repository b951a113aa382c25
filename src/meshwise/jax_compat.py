"""Everything that Meshwise takes from JAX beyond its stable public API, in one place.

Each name says which version changed it.  `jax._src` may be imported only here; a test lists the
imports.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import traceback
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import PurePath
from typing import Any, NamedTuple, Protocol, TypeAlias, cast
from typing import Literal as OneOf

import jax.numpy as jnp
import numpy as np
from jax import (
    Array,
    ShapeDtypeStruct,
    core,
    disable_jit,
    export,
    lax,
    make_jaxpr,
    nn,
    sharding,
    tree_util,
)
from jax._src import (
    api_util,
    callback,
    compilation_cache,
    compiler,
    config,
    debugging,
    distributed,
    dtypes,
    pjit,
    sharding_impls,
    source_info_util,
)
from jax._src.clusters import ClusterEnv
from jax._src.core import get_axis_env, trace_state_clean
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax._src.interpreters import mlir
from jax._src.interpreters.batching import BatchTracer
from jax._src.interpreters.partial_eval import convert_constvars_jaxpr
from jax._src.lib import (
    cuda_versions,
    xla_client,  # pyright: ignore[reportPrivateImportUsage]
)
from jax._src.lib.mlir import (
    ir,  # pyright: ignore[reportPrivateImportUsage]
    passmanager,  # pyright: ignore[reportPrivateImportUsage]
)
from jax._src.mesh import empty_abstract_mesh, empty_concrete_mesh, get_concrete_mesh
from jax._src.state import indexing
from jax._src.state import types as state_types
from jax.extend import core as jex_core
from jax.interpreters import partial_eval

# A tree of arrays as JAX understands it: dicts, lists, tuples and registered classes, nested.
PyTree: TypeAlias = Any

Literal = jex_core.Literal
Jaxpr = jex_core.Jaxpr
ClosedJaxpr = jex_core.ClosedJaxpr
Primitive = jex_core.Primitive
SourceInfo = source_info_util.SourceInfo
jaxpr_as_fun = jex_core.jaxpr_as_fun


# How JAX names the memory of the host from which devices copy.
HOST_MEMORY = "pinned_host"

# What a traced call says of the mesh that was set: none.
NO_MESH = empty_abstract_mesh

# The shape and dtype of a value, as JAX traces it.
Aval: TypeAlias = core.ShapedArray


class Var(Protocol):
    """A variable of a jaxpr, or a literal in its place.

    Attributes:
        aval: The shape and dtype of its value.
    """

    aval: Aval


class Eqn(Protocol):
    """An equation of a jaxpr.

    Attributes:
        primitive: The operation.
        params: The parameters of the operation.
        invars: The operands.
        outvars: The results.
        source_info: The user's line.
        effects: What it does beside returning results.
    """

    primitive: Primitive
    params: dict[str, Any]
    invars: list[Var]
    outvars: list[Var]
    source_info: SourceInfo
    effects: frozenset[Any]


class FlatJaxpr(Protocol):
    """A jaxpr, closed or not.

    Attributes:
        constvars: Variables of captured values.
        invars: The arguments.
        eqns: The equations, in order.
        outvars: The results.
    """

    constvars: list[Var]
    invars: list[Var]
    eqns: list[Eqn]
    outvars: list[Var]


# Primitives whose body is inlined; the parameter that holds it.  `pjit` is the name before 0.7,
# `remat2` of 0.10, `remat3` of 0.11.
CALL_BODIES = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "remat2": "jaxpr",
    "remat3": "jaxpr",
    "checkpoint": "jaxpr",
    "composite": "jaxpr",
    "custom_vmap_call": "call",
    "linear_call": "callee",
    "remat_opt": "fwd_jaxpr",
}
# Functions of JAX under which the loss runs while it is differentiated.
_GRADIENT_FRAMES = frozenset({"value_and_grad_f"})
# Folders of packages, and ours.
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_OURS = PurePath(__file__).parent
# Packages whose gradients take a user's function as `jax.grad` does.
_WRAPPERS = frozenset({"flax", "equinox"})
REMAT_NAMES = frozenset({"remat2", "remat3", "checkpoint"})


def dead_code_eliminated(jaxpr: Jaxpr) -> Jaxpr:
    """Drop the equations that no result needs; inputs stay.

    Args:
        jaxpr: The jaxpr.

    Returns:
        The same without dead equations.
    """
    return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)[0]


def consts_as_inputs(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Make captured values leading arguments.

    Args:
        closed: The jaxpr.

    Returns:
        A closed jaxpr that captures nothing.
    """
    if not closed.consts:
        return closed
    return ClosedJaxpr(convert_constvars_jaxpr(closed.jaxpr), ())


def bind_equation(eqn: Eqn, operands: Sequence[Any], call: SourceInfo | None = None) -> list[Any]:
    """Run one equation of a jaxpr, under its own source line or that of the call that holds it.

    Args:
        eqn: The equation.
        operands: The values of its operands.
        call: The source of the call.

    Returns:
        Its results.
    """
    with source_scope(best_source(eqn.source_info, call)):
        out = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
    return list(out) if eqn.primitive.multiple_results else [out]


def with_params(eqn: Any, params: dict[str, Any]) -> Eqn:
    """Return an equation with other parameters.

    Args:
        eqn: The equation.
        params: The parameters.
    """
    return eqn.replace(params=params)


def constrained(value: Array, wanted: sharding.NamedSharding) -> Array:
    """Say how a value is to be split; the mesh may have no devices, and axes of any type.

    Args:
        value: The value.
        wanted: What is asked.

    Returns:
        The same value.
    """
    return pjit.sharding_constraint_p.bind(
        value,
        sharding=wanted,
        layout=None,
        context_mesh=empty_abstract_mesh,
        unconstrained_dims=frozenset(),
    )


def exported_program(jitted: Any, operands: Sequence[Any]) -> Any:
    """Export a jitted function so that another process can compile it.

    It pickles, since it has no derivative; `Exported.serialize` would need a package that JAX
    does not require.

    Args:
        jitted: The function.
        operands: Shapes and dtypes of its arguments.

    Returns:
        The exported function.
    """
    return replace(export.export(jitted)(*operands), _get_vjp=None)


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """Count the constants and the carries of a `scan` equation.

    JAX 0.11 holds the structure of the operands (`ft_in`) in place of the two numbers.

    Args:
        params: The parameters of the equation.

    Returns:
        The two numbers.
    """
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    positions = range(len(params["jaxpr"].in_avals))
    consts, carry, _ = params["ft_in"].update(positions).unpack()
    return len(list(consts)), len(list(carry))


def closed_jaxpr(jaxpr: Jaxpr | ClosedJaxpr) -> ClosedJaxpr:
    """Close a jaxpr that may be open: JAX 0.11 has open ones in the parameters of `scan`.

    Args:
        jaxpr: The jaxpr.

    Returns:
        The closed one.
    """
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())


def bodies(params: Mapping[str, Any]) -> list[FlatJaxpr]:
    """Find the jaxprs among the parameters of an equation.

    Args:
        params: The parameters.

    Returns:
        The jaxprs.
    """
    return cast(list[FlatJaxpr], list(jex_core.jaxprs_in_params(dict(params))))


def is_whole_block(eqn: Eqn) -> bool:
    """Tell whether a read or write of a reference inside a kernel touches all of it.

    Args:
        eqn: A `get` or a `swap` (its second operand is what is written).

    Returns:
        Whether it does.
    """
    first = 2 if eqn.primitive.name == "swap" else 1
    transforms = tree_util.tree_unflatten(eqn.params["tree"], eqn.invars[first:])
    return all(
        isinstance(transform, indexing.NDIndexer)
        and all(map(_is_whole_dim, transform.indices, transform.shape))
        for transform in transforms
    )


def _is_whole_dim(index: Any, size: int) -> bool:
    if isinstance(index, indexing.Slice):  # pyright: ignore[reportPrivateImportUsage]
        return (index.start, index.size, index.stride) == (0, size, 1)
    value = index.val if isinstance(index, Literal) else index
    return size == 1 and isinstance(value, int | np.integer)


def written_references(body: Any) -> list[int]:
    """Find the arguments of the body of a kernel that it writes to.

    Args:
        body: A jaxpr on references.

    Returns:
        Their positions.
    """
    changes = (state_types.WriteEffect, state_types.AccumEffect)
    found: list[Any] = [effect for effect in body.effects if isinstance(effect, changes)]
    every = [*body.constvars, *body.invars]
    # JAX names the variable since 0.10, its position before.
    own = {e.input if hasattr(e, "input") else every[e.input_index] for e in found}
    return [i for i, var in enumerate(body.invars) if var in own]


class KernelBlocks(NamedTuple):
    """How an operand or a result of a Pallas kernel is cut into blocks.

    Attributes:
        sizes: Size of a block along each dim; None where it is no plain block.
        map: From numbers of the grid (then scalars that are there before) to that of the block.
        shape: Shape of the array.
    """

    sizes: tuple[int | None, ...]
    map: FlatJaxpr
    shape: tuple[int, ...]


def kernel_blocks(grid_mapping: Any) -> tuple[KernelBlocks, ...]:
    """Read the block maps of a Pallas kernel: those of its operands, then those of its results.

    Args:
        grid_mapping: The parameter of `pallas_call`.

    Returns:
        One for each.
    """
    from jax.experimental import pallas

    def size_of(dim: Any) -> int | None:
        if isinstance(dim, pallas.Squeezed):
            return 1
        return dim.block_size if isinstance(dim, pallas.Blocked) else None

    return tuple(
        KernelBlocks(
            sizes=tuple(map(size_of, mapping.block_shape)),
            map=mapping.index_map_jaxpr.jaxpr,
            shape=tuple(mapping.array_aval.shape),
        )
        for mapping in grid_mapping.block_mappings
    )


def with_kernel_shapes(
    params: Mapping[str, Any], grid: Sequence[int], shapes: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """Return the parameters of a Pallas kernel on a part of its grid.

    Args:
        params: The parameters of `pallas_call`.
        grid: The part of the grid.
        shapes: Shapes of the parts of operands and results that have blocks.

    Returns:
        The same kernel on arrays of these shapes.
    """
    whole = params["grid_mapping"]
    mappings = tuple(
        mapping.replace(array_aval=mapping.array_aval.update(shape=tuple(shape)))
        for mapping, shape in zip(whole.block_mappings, shapes, strict=True)
    )
    share = math.prod(grid) / max(1, math.prod(whole.grid))
    cost = params["cost_estimate"]
    if cost is not None:
        cost = replace(
            cost,
            flops=int(cost.flops * share),
            transcendentals=int(cost.transcendentals * share),
            bytes_accessed=int(cost.bytes_accessed * share),
        )
    avals = tuple(
        aval.update(shape=tuple(shape))
        for aval, shape in zip(params["out_avals"], shapes[whole.num_inputs :], strict=True)
    )
    return {
        **params,
        "grid_mapping": whole.replace(grid=tuple(grid), block_mappings=mappings),
        "out_avals": avals,
        "cost_estimate": cost,
    }


@cache
def _on_one_device(is_backward: bool) -> Primitive:
    made = Primitive("cudnn_attention_gradient" if is_backward else "cudnn_attention")
    made.multiple_results = True
    if is_backward:
        shapes = cudnn._dot_product_attention_bwd_abstract
        lowering = cudnn._dot_product_attention_bwd_cuda_lowering
    else:
        shapes = cudnn._dot_product_attention_fwd_abstract
        lowering = cudnn._dot_product_attention_fwd_cuda_lowering
    made.def_abstract_eval(shapes)
    mlir.register_lowering(made, lowering, platform="cuda")
    return made


def cudnn_on_one_device(
    primitive: Primitive, operands: Sequence[Array], params: Mapping[str, Any]
) -> list[Array]:
    """Bind attention by cuDNN where each device runs its own part.

    JAX's own primitives find out how their operands are split, for which they want the devices
    when a program is lowered; inside of `shard_map` nothing is to be found.  JAX 0.10.2.

    Args:
        primitive: One of JAX's primitives, or one in its place.
        operands: The local operands.
        params: The parameters.

    Returns:
        The results.
    """
    is_backward = primitive is cudnn._dot_product_attention_bwd_p_wrapper
    if not is_backward and primitive is not cudnn._dot_product_attention_fwd_p_wrapper:
        return primitive.bind(*operands, **params)
    own = _on_one_device(is_backward)
    query, key, value, bias, rows, keys, row_offsets, key_offsets, *others = operands
    lengths = cudnn._fix_seqlen_offsets(rows, keys, row_offsets, key_offsets, query, key)
    return own.bind(query, key, value, bias, *lengths, *others, **params)


# What JAX says where it has no cuDNN.
_NO_CUDNN = "cuDNN is not detected"
# The cuDNN for which attention is traced where there is none: what it can do is asked of its
# version.  Source: cuDNN 9.10.2, the oldest that JAX 0.10 supports on all its GPUs.
_CUDNN_VERSION = 91002


def is_missing_cudnn(error: Exception) -> bool:
    """Tell whether JAX has raised an error because there is no cuDNN.

    Args:
        error: The error.

    Returns:
        Whether it has.
    """
    return _NO_CUDNN in str(error)


def attention_by_cudnn(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    mask: Array | None,
    *,
    scale: float | None,
    is_causal: bool,
    lengths: tuple[Array | None, Array | None],
    window: int | None,
) -> Array:
    """Bind attention by cuDNN as `jax.nn.dot_product_attention` does, also where there is none.

    JAX asks which cuDNN is there before it binds its primitives (0.10.2); nothing else of them
    needs it.

    Args:
        query: (batch, row, head, feature).
        key: (batch, key, head, feature).
        value: (batch, key, head, feature).
        bias: (1 or batch, 1 or head, row, key).
        mask: The same, of booleans.
        scale: Factor of the scores; None for 1 / sqrt(features).
        is_causal: Whether a row sees no key after its own place.
        lengths: Numbers of rows and of keys of each sequence.
        window: How many keys before its own place a row sees; None for all.

    Returns:
        (batch, row, head, feature).
    """
    if cuda_versions is not None:
        return nn.dot_product_attention(
            query,
            key,
            value,
            bias,
            mask,
            scale=scale,
            is_causal=is_causal,
            query_seq_lengths=lengths[0],
            key_value_seq_lengths=lengths[1],
            local_window_size=None if window is None else (window, 0),
            implementation="cudnn",
        )
    layout, unused = cudnn.AttentionLayout.BTNH, jnp.zeros(0, query.dtype)
    mask_type = cudnn.MaskType.CAUSAL if is_causal else cudnn.MaskType.NO_MASK
    rows, keys = lengths
    if rows is not None or keys is not None:
        mask_type = cudnn.MaskType.PADDING_CAUSAL if is_causal else cudnn.MaskType.PADDING
        rows, keys = (
            jnp.full(x.shape[:1], x.shape[1], np.int32) if own is None else own
            for own, x in ((rows, query), (keys, key))
        )
    bias = cudnn.combine_bias_and_mask(bias, mask, query.dtype)
    cudnn.check_layout(query, key, value, bias, rows, keys, None, None, None, None, layout)
    return cudnn._dot_product_attention(
        query,
        key,
        value,
        unused if bias is None else bias,
        unused if rows is None else rows,
        unused if keys is None else keys,
        *(unused,) * 4,
        float(1 / np.sqrt(query.shape[-1])) if scale is None else scale,
        42,
        0.0,
        (bias is not None, bias is not None),
        mask_type,
        layout.value,
        None if window is None else window + 1,
        _CUDNN_VERSION,
        False,
    )


def while_parts(params: Mapping[str, Any]) -> tuple[Jaxpr, Jaxpr, int, int]:
    """Return the parts of a `while` equation.

    Args:
        params: The parameters of the equation.

    Returns:
        Predicate, body, and the numbers of constants of each.
    """
    return (
        params["cond_jaxpr"],
        params["body_jaxpr"],
        params["cond_nconsts"],
        params["body_nconsts"],
    )


def source_line(source: SourceInfo | None, *, outside: str = "") -> str:
    """Return the user's source line of an equation, as `model.py:88:4 (step.loss_fn)`.

    Without the folder: equal steps in other places have equal plans, and a plan tells nothing of
    the machine that made it.

    Args:
        source: The source of an equation.
        outside: A folder whose files are not the user's, though they are none of JAX.
    """
    if source is None:
        return ""
    frames = source_info_util.user_frames(source.traceback)
    mine = (f for f in frames if not outside or not f.file_name.startswith(outside))
    frame = next(mine, None)
    if frame is None:
        return ""
    column = f":{frame.start_column}" if frame.start_column else ""
    function = frame.function_name.replace("<locals>.", "")
    return f"{PurePath(frame.file_name).name}:{frame.start_line}{column} ({function})"


def best_source(own: SourceInfo | None, call: SourceInfo | None) -> SourceInfo | None:
    """Choose the source of an equation: that of its call if its own shows no line of the user.

    Args:
        own: The source of the equation.
        call: The source of the call that holds it.

    Returns:
        One of the two.
    """
    if call is None or (own and source_info_util.user_frame(own.traceback)):
        return own
    return call


class GradientCall(NamedTuple):
    """The user's line at which JAX's own gradient is taken.

    Attributes:
        path: Its file.
        line: The number of the line.
        function: The function that it is in.
        package: The package that takes the gradient for the user; empty if the line does.
    """

    path: str
    line: int
    function: str
    package: str


def gradient_call(
    source: SourceInfo | None, around: Sequence[SourceInfo] = ()
) -> GradientCall | None:
    """Return the user's call of `jax.grad` or `jax.value_and_grad`.

    Args:
        source: Source of an equation.
        around: Sources of the equations whose bodies hold it, inner ones first; the traceback of
            an equation ends where its body begins.

    Returns:
        None if the equation was not traced inside of such a call.
    """
    inside, package = False, ""
    for info in (source, *around):
        for frame in info.traceback.frames if info and info.traceback else ():
            if source_info_util.is_user_filename(frame.file_name):
                if not inside:
                    continue
                library = _package(frame.file_name)
                if not library:
                    return GradientCall(
                        frame.file_name, frame.line_num, frame.function_name, package
                    )
                package = package or ("" if library in _WRAPPERS else library)
            elif frame.function_name.rpartition(".")[2] in _GRADIENT_FRAMES:
                inside = True
    return None


def _package(path: str) -> str:
    """Return the installed package, or ours, that a file belongs to; empty for the user's files."""
    if PurePath(path).is_relative_to(_OURS):
        return _OURS.name
    parts = PurePath(path).parts
    at = next((k for k, part in enumerate(parts) if part in _INSTALLED), None)
    return "" if at is None else PurePath(parts[at + 1]).stem


@contextmanager
def source_scope(source: SourceInfo | None) -> Iterator[None]:
    """Give equations that are bound inside the source line of the equation for which they stand.

    Args:
        source: The source of that equation.

    Returns:
        A context manager.
    """
    if source is None:
        yield
        return
    with source_info_util.user_context(source.traceback, name_stack=source.name_stack):
        yield


def weakly_typed(value: Array) -> Array:
    """Let a value give way to the dtype of what it meets, as a number of Python does.

    Args:
        value: The value.

    Returns:
        The same value, weakly typed.
    """
    return lax.convert_element_type_p.bind(
        value, new_dtype=value.dtype, weak_type=True, sharding=None
    )


def is_tracer(value: object) -> bool:
    """Tell whether a value is being traced.

    Args:
        value: The value.

    Returns:
        Whether it is.
    """
    return isinstance(value, core.Tracer)


_CALLBACK_EFFECTS = (
    debugging.DebugEffect,
    debugging.OrderedDebugEffect,
    callback.IOEffect,
    callback.OrderedIOEffect,
)


# What a call of a function of the host has as its effect in a jaxpr.
CALLBACK_EFFECT = debugging.debug_effect


def is_of_callback(effect: object) -> bool:
    """Tell whether an effect of a jaxpr is a call of a function of the host.

    Args:
        effect: The effect.

    Returns:
        Whether it is.
    """
    return isinstance(effect, _CALLBACK_EFFECTS)


def unordered(params: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Take the order out of the parameters of a callback.

    Args:
        params: Those of `debug_callback` (which has an effect), `debug_print` (since 0.8) or
            `io_callback` (which say whether they are ordered).

    Returns:
        Whether it is ordered, and the parameters of one that is not.
    """
    if "effect" in params:
        is_ordered = params["effect"] is debugging.ordered_debug_effect
        return is_ordered, {**params, "effect": debugging.debug_effect}
    return params["ordered"], {**params, "ordered": False}


def with_a_result(name: str, params: Mapping[str, Any]) -> tuple[dict[str, Any], Aval]:
    """Give the bodies of a `cond` or `scan` that returns nothing a result, which is 0.

    Args:
        name: Which of the two.
        params: Its parameters.

    Returns:
        The parameters, and the aval of the result.
    """

    def with_zero(body: ClosedJaxpr) -> ClosedJaxpr:
        def function(*args: Any) -> list[Any]:
            return [*jaxpr_as_fun(body)(*args), np.int32(0)]

        return make_jaxpr(function)(*body.in_avals)

    if name == "cond":
        branches = tuple(map(with_zero, params["branches"]))
        return {**params, "branches": branches}, core.ShapedArray((), np.dtype(np.int32))
    aval = core.ShapedArray((params["length"],), np.dtype(np.int32))
    return {**params, "jaxpr": with_zero(params["jaxpr"])}, aval


def is_staged(value: object) -> bool:
    """Tell whether a value is traced into a jaxpr, not differentiated or mapped at once.

    Args:
        value: The value.

    Returns:
        Whether it is.
    """
    return isinstance(value, partial_eval.DynamicJaxprTracer)


def is_tracing() -> bool:
    """Return whether anything is being traced, even if no value at hand shows it."""
    return not trace_state_clean()


def is_unbound_axis(error: NameError) -> bool:
    """Tell whether an error says that a collective is over an axis that nothing binds.

    Args:
        error: The error.

    Returns:
        Whether it does.
    """
    return "unbound axis name" in str(error)


def raising_line(error: BaseException) -> str:
    """Return the user's line from which an error comes, as `source_line` writes it.

    Args:
        error: The error.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if source_info_util.is_user_filename(frame.filename)
    ]
    if not frames:
        return ""
    return f"{PurePath(frames[-1].filename).name}:{frames[-1].lineno} ({frames[-1].name})"


def users_mesh() -> sharding.AbstractMesh:
    """Return the mesh that a user has set, by `jax.set_mesh`; an empty one if there is none."""
    return sharding.get_abstract_mesh()


def trace_context() -> Hashable:
    """Return all settings of JAX that a trace depends on: `jax.jit` traces anew if they change."""
    return config.trace_context()


def has_type(dtype: Any) -> bool:
    """Tell whether numbers of a type are made here: those of 64 bits only under `enable_x64`.

    Args:
        dtype: The type.
    """
    return dtypes.canonicalize_dtype(dtype, allow_extended_dtype=True) == dtype


# Settings that decide what a step computes, and that may be those of one thread.
_SETTINGS = (
    *("enable_x64", "default_matmul_precision", "default_prng_impl"),
    *("threefry_partitionable", "numpy_dtype_promotion"),
)


def users_settings() -> dict[str, Any]:
    """Return the settings of this thread that decide what a step computes, by name."""
    return {name: getattr(config, name).value for name in _SETTINGS}


@contextmanager
def under_settings(settings: Mapping[str, Any]) -> Iterator[None]:
    """Run what is inside under the settings of another process.

    Args:
        settings: What `users_settings` returns there.

    Returns:
        A context manager.
    """
    with ExitStack() as stack:
        for name, value in settings.items():
            stack.enter_context(getattr(config, name)(value))
        yield


@contextmanager
def own_context() -> Iterator[None]:
    """Free what runs inside from the mesh that a user has set, and compile it in any case.

    Returns:
        A context manager.
    """
    is_jitted = not config.disable_jit.value
    if is_jitted and users_mesh().empty and get_concrete_mesh().empty:
        yield
        return
    with (
        disable_jit(False),
        sharding_impls._internal_use_concrete_mesh(empty_concrete_mesh),
        sharding.use_abstract_mesh(empty_abstract_mesh),
    ):
        yield


def is_jit_disabled() -> bool:
    """Return whether a user wants functions to run without `jax.jit`."""
    return config.disable_jit.value


def is_not_finite(error: BaseException) -> bool:
    """Tell whether an error says that a program returned a NaN or an infinity.

    Args:
        error: The error; JAX makes it where `jax_debug_nans` or `jax_debug_infs` is set.

    Returns:
        Whether it does.
    """
    return isinstance(error, api_util.InternalFloatingPointError)


def has_mesh(value: object) -> bool:
    """Tell whether the type of a value names a mesh, as under `jax.set_mesh` with Explicit axes.

    Args:
        value: The type.

    Returns:
        Whether it does.
    """
    return isinstance(value, core.ShapedArray) and not value.sharding.mesh.empty


def without_mesh(value: Aval) -> Aval:
    """Return the type of a value without its mesh.

    Args:
        value: The type.
    """
    return core.ShapedArray(value.shape, value.dtype, weak_type=value.weak_type)


def names_axes(own: Any) -> bool:
    """Tell whether the sharding of a type says more than Auto axes do, which say nothing.

    Args:
        own: The sharding.

    Returns:
        Whether it does: its axes are Explicit, or Manual inside of a `shard_map`.
    """
    return not own.mesh.empty and not own.mesh.are_all_axes_auto


def explicit(value: Any, spec: ShapeDtypeStruct) -> ShapeDtypeStruct:
    """Return the shape and dtype of an argument, with its layout where that belongs to its type.

    Args:
        value: An array or a `ShapeDtypeStruct`; that of a mesh with Explicit axes has such a type.
        spec: Its shape and dtype.
    """
    own: Any = getattr(value, "sharding", None)
    if not isinstance(own, sharding.NamedSharding) or not names_axes(own):
        return spec
    return spec.update(sharding=sharding.NamedSharding(own.mesh.abstract_mesh, own.spec))


def with_checked_layouts(compiled: Any) -> Any:
    """Let a compiled program take arrays of whole numbers of less than a byte.

    Those of its arguments say how many bits a number takes, those of arrays say 0, so that JAX
    refuses all that are committed to their devices; `jax.jit` does not compare them.  JAX 0.10.2.

    Args:
        compiled: What `jax.jit(...).lower(...).compile()` returns.

    Returns:
        The same program, which leaves the layouts of such arguments to XLA.
    """
    executable = compiled._executable
    executable._xla_in_layouts = [
        None if layout is not None and layout.sub_byte_element_size_in_bits else layout
        for layout in executable._xla_in_layouts
    ]
    return compiled


def has_bound_axes() -> bool:
    """Tell whether collectives have axes here, as in a `shard_map` or a `vmap` with a name."""
    return bool(get_axis_env().axis_sizes)


def is_mapped(value: object, axis: str) -> bool:
    """Tell whether a value differs along the axis of the `vmap` that is being traced.

    Args:
        value: The value.
        axis: The name of the axis.

    Returns:
        Whether it does.
    """
    return isinstance(value, BatchTracer) and value._trace.axis_data.name == axis


def refill(array: Any, contents: Array) -> None:
    """Give a deleted array the buffers of another one of its shape, dtype and sharding.

    As JAX does with the arrays that its own functions with effects have changed; since 0.8.

    Args:
        array: The deleted array.
        contents: The other one.
    """
    array._replace_with(contents)
    # Shards that someone has looked at are kept there; these are still the deleted ones.
    vars(getattr(array, "_base_array", array)).pop("addressable_shards", None)


class KeyValueStore(Protocol):
    """What the processes of a `jax.distributed` job share: texts by key, kept by process 0."""

    def key_value_set_bytes(self, key: str, value: bytes, allow_overwrite: bool = False) -> None:
        """Set the value of a key; one that has a value is refused unless it may be overwritten."""
        ...

    def key_value_try_get_bytes(self, key: str) -> bytes:
        """Return the value of a key; an error if it has none."""
        ...

    def key_value_dir_get_bytes(self, key: str) -> list[tuple[str, bytes]]:
        """Return all keys below a key, with their values."""
        ...

    def blocking_key_value_get_bytes(self, key: str, timeout_in_ms: int) -> bytes:
        """Return the value of a key, when it has one."""
        ...

    def key_value_increment(self, key: str, increment: int) -> int:
        """Add to the number under a key, 0 if it has none, and return the sum."""
        ...

    def key_value_delete(self, key: str) -> None:
        """Remove a key and all below it."""
        ...


class JobState(NamedTuple):
    """What `jax.distributed` knows of a job: this process, how many there are, what they share.

    `coordinator` is the `host:port` of process 0, as this process was told it.
    """

    process: int
    num_processes: int
    store: KeyValueStore
    coordinator: str


def job_state() -> JobState | None:
    """Return the job of this process; None before `jax.distributed.initialize()`.  No backend."""
    state = distributed.global_state
    client: Any = state.client
    if client is None:
        return None
    address = str(state.coordinator_address)
    return JobState(state.process_id, state.num_processes, client, address)


class CompilerPlugin:
    """A compiler for devices that are not here; a process can load it once.

    `jax.experimental.topologies` does the same for plugins that JAX has found by itself; here the
    plugin is a file, so that the process needs no device and no driver.  JAX 0.10.2.

    Args:
        platform: How JAX names the platform, as `cuda`.
        path: File of the plugin.
    """

    def __init__(self, platform: str, path: str) -> None:
        self._api = xla_client.load_pjrt_plugin_dynamically(platform, path)
        xla_client.initialize_pjrt_plugin(platform)

    def devices(self, name: str, options: Mapping[str, Any]) -> list[Any]:
        """Return devices to compile for.

        Args:
            name: How the compiler names the devices, as "v5e:2x4".
            options: What else it asks for.
        """
        made = xla_client.make_c_api_device_topology(self._api, name, **options)
        return made._make_compile_only_devices()


def module_of(lowered: Any) -> tuple[bytes, str]:
    """Return a lowered program as MLIR bytecode, and a digest that source lines do not change.

    Args:
        lowered: What `jax.jit(...).trace(...).lower(...)` returns.

    Returns:
        The bytecode, with source lines, and the digest.
    """
    operation = lowered.compiler_ir("stablehlo").operation
    whole, bare = io.BytesIO(), io.BytesIO()
    operation.write_bytecode(whole)
    with operation.context:
        clone = operation.clone()
        passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(clone.operation)
    clone.operation.write_bytecode(bare)
    return whole.getvalue(), hashlib.sha256(bare.getvalue()).hexdigest()


def compile_module(module: bytes, devices: Sequence[Any], options: Mapping[str, str | bool]) -> Any:
    """Compile a lowered program for devices that are not here.

    Args:
        module: StableHLO as MLIR bytecode.
        devices: The devices of its mesh, row-major (`CompilerPlugin.devices`).
        options: Compile options by name.

    Returns:
        An executable that has a text and a memory analysis, and that cannot run.
    """
    client = devices[0].client
    settings = compiler.get_compile_options(
        num_replicas=1,
        num_partitions=len(devices),
        device_assignment=np.array([[device.id for device in devices]]),
        env_options_overrides=dict(options),  # type: ignore[arg-type]
        backend=client,
    )
    with mlir.make_ir_context():
        parsed = ir.Module.parse(module)
    return client.compile(parsed, xla_client.DeviceList(tuple(devices)), settings)


def keeps_programs() -> OneOf["nowhere", "elsewhere", "here"]:
    """Return where JAX keeps executables: it must not, it has a folder, or it may be given one."""
    if not config.enable_compilation_cache.value:
        return "nowhere"
    return "elsewhere" if config.compilation_cache_dir.value else "here"


@contextmanager
def programs_kept(folder: PurePath | None) -> Iterator[None]:
    """Let JAX keep all executables that this thread compiles, also those that took little time.

    JAX opens one folder for the whole process when it first needs it, which it has forgotten after
    the block.  JAX 0.10.2.

    Args:
        folder: Where; None: where JAX is told already, if it is.
    """
    with (
        config.persistent_cache_min_compile_time_secs(0.0),
        config.persistent_cache_min_entry_size_bytes(0),
    ):
        if folder is None:
            yield
            return
        compilation_cache.reset_cache()
        try:
            with config.compilation_cache_dir(str(folder)):
                yield
        finally:
            compilation_cache.reset_cache()


def damaged_program(data: bytes) -> bool:
    """Return whether a file of JAX's compilation cache was not written to its end.

    Args:
        data: The file.
    """
    try:
        compilation_cache.decompress_executable(data)
    except Exception:  # each way of compression has its own error
        return True
    return False


def add_cluster_detection(name: str, detect: Callable[[], tuple[str, int, int] | None]) -> None:
    """Let `jax.distributed.initialize()` find a job in one more way, which it tries first.

    JAX has no public registry: it asks the subclasses of `ClusterEnv` in their order.  JAX 0.10.2.

    Args:
        name: How `cluster_detection_method` names the way.
        detect: Returns the address of the coordinator, the number of processes and that of this
            process; None where there is no such job.
    """

    def found() -> tuple[str, int, int]:
        job = detect()
        if job is None:
            raise RuntimeError(f"this process is in no job of {name}")
        return job

    class Detection(ClusterEnv):
        @classmethod
        def is_env_present(cls) -> bool:
            return detect() is not None

        @classmethod
        def get_coordinator_address(cls, *_: Any, **__: Any) -> str:
            return found()[0]

        @classmethod
        def get_process_count(cls) -> int:
            return found()[1]

        @classmethod
        def get_process_id(cls) -> int:
            return found()[2]

    Detection.name = name
    # A job that was started inside of one of Slurm's sees the variables of both.
    others = [way for way in ClusterEnv._cluster_types if way.name != name]
    ClusterEnv._cluster_types[:] = [Detection, *others]


def detected_job(timeout_s: int = 30) -> tuple[str, int, int] | None:
    """Find the job of this process as `jax.distributed.initialize()` does.

    Args:
        timeout_s: Seconds that a way of detection may wait for an answer.

    Returns:
        The address of the coordinator, the number of processes and that of this process; None
        where JAX detects no job.
    """
    coordinator, num_processes, process_id, _ = ClusterEnv.auto_detect_unset_distributed_params(
        coordinator_address=os.environ.get("JAX_COORDINATOR_ADDRESS"),
        num_processes=None,
        process_id=None,
        local_device_ids=None,
        cluster_detection_method=None,
        initialization_timeout=timeout_s,
    )
    if coordinator is None or num_processes is None or process_id is None:
        return None
    return coordinator, num_processes, process_id
