"""What `meshwise train` and `meshwise plan` say of what they search, and where memory comes from.

Their defaults differ: a run is on one mesh, of the devices that are here; a plan may have stages,
and is the same on every machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax

from meshwise.cluster.cpu_host import HOST_MEMORY_BYTES
from meshwise.cluster.spec import ClusterSpec
from meshwise.cluster.text import cpu_name
from meshwise.runtime.device_memory import host_memory_bytes
from meshwise.units import bytes_text

# Without the packages of models, too.
if TYPE_CHECKING:
    from meshwise.train.options import TrainOptions


def train_search_text(options: TrainOptions) -> str:
    """Return what a run searches.

    Args:
        options: Of the run.
    """
    if options.plan is not None:
        return "checking the plan of --plan; nothing is searched"
    if options.stages is None and (options.method, options.mesh) == ("auto", None):
        return "planning on one mesh; --stages auto searches pipeline stages, too"
    if options.stages is None:
        return "planning on one mesh"
    return f"planning pipelines, stages: {options.stages}"


def train_memory_text(options: TrainOptions) -> str:
    """Return where the memory of virtual CPU devices comes from; empty for others, and where asked.

    Args:
        options: Of the run.
    """
    devices = jax.devices()
    is_asked = (options.memory_bytes, options.cluster, options.plan) != (None, None, None)
    if is_asked or devices[0].platform != "cpu" or jax.process_count() > 1:
        return ""
    each = bytes_text(host_memory_bytes() // len(devices))
    return (
        f"memory: {each} a device, equal parts of this machine's; `meshwise plan --cluster "
        f'"{len(devices)} cpu"` assumes a machine of {bytes_text(HOST_MEMORY_BYTES)} instead; '
        "--memory sets it in both"
    )


def plan_search_text(cluster: ClusterSpec, num_stages: int | None, memory: int | None) -> str:
    """Return what `meshwise plan` searches, and where the memory of virtual CPU devices comes from.

    Args:
        cluster: For which is planned.
        num_stages: How many stages are asked for; None: as many as are fastest.
        memory: Bytes of a device that are asked for; None: what the cluster has.
    """
    stages = "any number of stages" if num_stages is None else f"stages: {num_stages}"
    device = cluster.slowest().device
    text = f"planning for {cluster.name}, {stages}"
    if memory is not None:
        return f"{text}, {bytes_text(memory)} a device (--memory)"
    text = f"{text}, {bytes_text(device.memory_bytes)} a device"
    if cluster.name != cpu_name(cluster.num_devices):
        return text
    here = bytes_text(host_memory_bytes() // cluster.num_devices)
    return (
        f"{text} of an assumed machine of {bytes_text(HOST_MEMORY_BYTES)}, so that plans are the "
        f"same everywhere; `meshwise train` takes this machine's, {here} a device; --memory sets it"
    )
