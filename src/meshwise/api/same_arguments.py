"""Arguments that processes pass as a whole are compared: each must pass the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from meshwise.api.arguments import Binding, Call
from meshwise.errors import DataError
from meshwise.runtime.host_rows import HostRows
from meshwise.runtime.job.job import Job, text_of_processes


def check_same_arguments(job: Job, step: str, leaves: Sequence[tuple[str, Any]]) -> None:
    """Compare the arguments of a call with those in other processes, before anything is planned.

    Of an array on a mesh, which is one array of all processes, its devices are compared.  Rows of a
    loader are no whole argument.

    Args:
        job: The processes, which make the same call.
        step: The name of the step.
        leaves: The leaves of the arguments, with their names.

    Raises:
        DataError: two processes pass different values of a leaf.
        ClusterError: a process does not make the call.
    """
    mine = {name: text for name, value in leaves if (text := _text(value)) is not None}
    told = [json.loads(t) for t in job.exchange(f"the arguments of {step}", json.dumps(mine))]
    for name in dict.fromkeys(name for known in told for name in known):
        who: dict[str, list[int]] = {}
        for process, known in enumerate(told):
            if name in known:
                who.setdefault(known[name], []).append(process)
        if len(who) > 1:
            those = (f"{text} in {text_of_processes(some)}" for text, some in who.items())
            raise DataError(
                f"processes pass different values of {name} to {step}: {', '.join(those)}. An "
                "array without a mesh is the whole argument, the same in each process, and one on "
                "a mesh lies on the same devices in each; let step.loader read the rows of each "
                "process, or make one batch of them with mw.host_batch"
            )


def _text(value: Any) -> str | None:
    """Return type and digest of a value that this process passes as a whole, or its devices."""
    if isinstance(value, (HostRows, jax.ShapeDtypeStruct)):
        return None
    if isinstance(value, jax.Array):
        if isinstance(value.sharding, NamedSharding):
            devices = sorted(device.id for device in value.sharding.device_set)
            shape = f"{value.dtype}{list(value.shape)}"
            return f"{shape} as {value.sharding.spec} on devices {devices}"
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
    array = np.ascontiguousarray(value)
    # Not all dtypes of JAX are buffers of Python.
    digest = hashlib.blake2b(array.reshape(-1).view(np.uint8).data, digest_size=6).hexdigest()
    return f"{array.dtype}{list(np.shape(value))} with digest {digest}"


def argument_leaves(binding: Binding, call: Call) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of all arguments of a call, with what messages call them.

    Args:
        binding: How the call is taken apart.
        call: The arguments.
    """
    for n, argument in enumerate(call.args):
        yield from named_leaves(binding.signature.label(n), argument)
    for name, argument in call.kwargs.items():
        yield from named_leaves(name, argument)


def named_leaves(label: str, argument: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of an argument with their names.

    Args:
        label: What messages call the argument.
        argument: A tree of arrays.
    """
    for path, leaf in jax.tree_util.tree_flatten_with_path(argument)[0]:
        yield label + jax.tree_util.keystr(path), leaf


def batch_leaves(binding: Binding, call: Call) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of the batch in a call, with what messages call them.

    Args:
        binding: Which arguments are batch data.
        call: The arguments.
    """
    for n in binding.signature.batch_argnums:
        yield from named_leaves(binding.signature.label(n), call.args[n])
