"""JAX's settings and meshes around a call, and what is being traced."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from jax import ShapeDtypeStruct, core, disable_jit, sharding
from jax._src import api_util, config, sharding_impls
from jax._src.core import get_axis_env, trace_state_clean
from jax._src.interpreters.batching import BatchTracer
from jax._src.mesh import empty_abstract_mesh, empty_concrete_mesh, get_concrete_mesh
from jax.interpreters import partial_eval

from meshwise.jax_compat.jaxprs import Aval

# What a traced call says of the mesh that was set: none.
NO_MESH = empty_abstract_mesh


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


def is_no_array(error: Exception) -> bool:
    """Tell whether an error says that a transformation of JAX got what is no array.

    Args:
        error: The error.

    Returns:
        Whether it does.
    """
    return "not a valid JAX type" in str(error) or "as an abstract array" in str(error)


def users_mesh() -> sharding.AbstractMesh:
    """Return the mesh that a user has set, by `jax.set_mesh`; an empty one if there is none."""
    return sharding.get_abstract_mesh()


def explicit_mesh() -> sharding.Mesh | None:
    """Return the mesh that a user has set if not all of its axes are Auto; None otherwise."""
    if users_mesh().empty:
        return None
    mesh = get_concrete_mesh()
    return None if mesh.empty or mesh.are_all_axes_auto else mesh


def trace_context() -> Hashable:
    """Return all settings of JAX that a trace depends on: `jax.jit` traces anew if they change."""
    return config.trace_context()


# Whether transfers that nobody asked for may take place.
_GUARDS = (config.transfer_guard_host_to_device, config.transfer_guard_device_to_device)
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


def transfer_guards() -> tuple[str | None, str | None]:
    """Return what `jax.transfer_guard` says of transfers from the host, and between devices."""
    from_host, between = (guard.value for guard in _GUARDS)
    return from_host, between


@contextmanager
def own_context() -> Iterator[None]:
    """Free what runs inside from the mesh that a user has set, and compile it in any case.

    Its transfers are those of a plan, so `jax.transfer_guard("disallow")` lets them pass.

    Returns:
        A context manager.
    """
    guards = [guard for guard in _GUARDS if guard.value == "disallow"]
    is_jitted = not config.disable_jit.value
    if is_jitted and users_mesh().empty and get_concrete_mesh().empty and not guards:
        yield
        return
    with (
        ExitStack() as stack,
        disable_jit(False),
        sharding_impls._internal_use_concrete_mesh(empty_concrete_mesh),
        sharding.use_abstract_mesh(empty_abstract_mesh),
    ):
        for guard in guards:
            stack.enter_context(guard("allow"))
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
