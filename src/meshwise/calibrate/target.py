"""A profile from the compiler of a target: what it expects products and passes to take.

No device is needed.  Every product and every pass is a program of its own for one device, so that
nothing else is in its cost; links and NICs stay those of the cluster's description.
"""

from __future__ import annotations

import datetime
import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version

import jax
from jax import lax

from meshwise.calibrate.fit import dense_rates, dense_times, memory_rate
from meshwise.calibrate.measure import ACCELERATOR_SIZES, Report, Sizes
from meshwise.cluster.catalog import HOSTS
from meshwise.cluster.description.profile import MatmulPoint, MemoryPoint, Profile
from meshwise.cluster.host import HostSpec
from meshwise.cluster.mesh import DeviceSpec
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import ClusterError, ProgramError
from meshwise.runtime.hlo.costs import COST_OPTION, hlo_costs
from meshwise.targets.child import CompileAnswer
from meshwise.targets.compile_target import CompileTarget
from meshwise.targets.compiler import TargetProgram, compile_programs
from meshwise.targets.lowered import target_program
from meshwise.targets.packages import installed_compiler
from meshwise.units import bytes_text, seconds_text

# XLA:GPU has no times of products in float16, and says eight times those in bfloat16.
TARGET_SIZES = replace(
    ACCELERATOR_SIZES,
    matmul=tuple(pair for pair in ACCELERATOR_SIZES.matmul if pair[0] != "float16"),
)
_ITEM_BYTES = 4
# A compiler that counts with this share of the peak bandwidth does not say what is reached of it.
_AS_THE_PEAK = 0.99


def host_of_target(target: CompileTarget, cluster: ClusterSpec | None = None) -> HostSpec:
    """Return the host that has the devices of a target.

    Args:
        target: The kind of device.
        cluster: A description with one kind of host; None for the catalog.

    Raises:
        ClusterError: there is none, or the cluster has other devices.
    """
    for host in HOSTS.values() if cluster is None else (cluster.host,):
        if host.device.name in target.devices:
            return host
    if cluster is not None:
        raise ClusterError(
            f"{cluster.name} has {cluster.device.name!r} devices, and target {target.name} is "
            f"{target.devices[0]!r}; pass a cluster of such devices"
        )
    raise ClusterError(
        f"no host of the catalog has {target.devices[0]!r} devices; describe one in a TOML file, "
        f"and pass it, as `meshwise calibrate --target {target.name} --cluster cluster.toml`"
    )


def calibrate_target(
    target: CompileTarget,
    host: HostSpec,
    *,
    command: str,
    sizes: Sizes = TARGET_SIZES,
    report: Report | None = None,
) -> Profile:
    """Ask the compiler of a target what products and passes over memory take.

    Args:
        target: The kind of device.
        host: The host as it is described; its device gets the compiler's numbers.
        command: The command that was called, for the profile.
        sizes: What to compile.
        report: Is told of every program; None for nobody.

    Returns:
        What the compiler says, and the host that the cost model reads.

    Raises:
        ClusterError: the compiler is not installed, or has no times for this device.
    """
    compiler = installed_compiler(target.platform)
    products = [(dtype, size) for dtype, rows in sizes.matmul for size in rows]
    programs = [
        *(_product(target, dtype, size) for dtype, size in products),
        *(_pass(target, num_bytes) for num_bytes in sizes.memory),
    ]
    seconds = _asked(target, programs, report or (lambda *_: None))
    matmul = tuple(
        MatmulPoint(dtype=dtype, size=size, seconds=found)
        for (dtype, size), found in zip(products, seconds, strict=False)
    )
    memory = tuple(
        MemoryPoint(num_bytes=num_bytes, seconds=found)
        for num_bytes, found in zip(sizes.memory, seconds[len(products) :], strict=True)
    )
    created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    name, _, its_version = compiler.name.partition(" ")
    versions = [(each, version(each)) for each in ("meshwise", "jax", "jaxlib")]
    device = _device(host, matmul, memory, f"costs of {compiler.name} on {created}")
    return Profile(
        created=created,
        command=command,
        versions=(*versions, (name, its_version), ("python", platform.python_version())),
        platform=target.platform,
        device_kind=target.devices[0],
        host=replace(host, name=f"{host.name} by {compiler.name}", device=device),
        matmul=matmul,
        memory=memory,
        collectives=(),
    )


def program_seconds(target: CompileTarget, answer: CompileAnswer) -> float:
    """Return the seconds that the compiler expects of one run of a program, without collectives.

    Transfers that run beside computation are not in it, and a loop of unknown trips counts once.

    Args:
        target: The kind of device.
        answer: What its compiler says.
    """
    costs = hlo_costs(answer.text, cycles_per_s=target.cycles_per_s, unknown_trip_count=1)
    return math.fsum(cost.seconds * cost.count for cost in costs)


def with_costs(program: TargetProgram, target: CompileTarget) -> TargetProgram:
    """Return a program that is compiled so that its text has costs."""
    if target.platform != "cuda":
        return program
    return replace(program, options={**program.options, COST_OPTION: True})


def _product(target: CompileTarget, dtype: str, size: int) -> TargetProgram:
    spec = jax.ShapeDtypeStruct((size, size), dtype)

    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.dot(x, w, preferred_element_type=x.dtype)

    return _program(target, f"{dtype} product of {size} x {size}", product, (spec, spec))


def _pass(target: CompileTarget, num_bytes: int) -> TargetProgram:
    spec = jax.ShapeDtypeStruct((max(num_bytes // (2 * _ITEM_BYTES), 1),), "float32")
    return _program(target, f"memory, {bytes_text(num_bytes)}", lambda x: x + 1, (spec,))


def _program(
    target: CompileTarget,
    name: str,
    function: Callable[..., jax.Array],
    specs: Sequence[jax.ShapeDtypeStruct],
) -> TargetProgram:
    lowered = jax.jit(function).trace(*specs).lower(lowering_platforms=(target.platform,))
    return with_costs(target_program(name, lowered, 1, target.platform), target)


def _asked(target: CompileTarget, programs: Sequence[TargetProgram], report: Report) -> list[float]:
    """Return the seconds of programs."""
    done: list[str] = []

    def tell(name: str, answer: CompileAnswer) -> None:
        done.append(name)
        found = seconds_text(program_seconds(target, answer))
        report(len(done), len(programs), f"{name}: {found}")

    remedy = "plan with the numbers of the catalog, or measure such a device"
    try:
        answers = compile_programs(target, programs, listener=tell)
    except ProgramError as error:
        # XLA:GPU refuses to write costs where its tables have no times of the device.
        raise ClusterError(f"no costs for {target.name}: {error}; {remedy}") from error
    seconds = [program_seconds(target, answer) for answer in answers]
    for program, found in zip(programs, seconds, strict=True):
        if not found > 0:
            raise ClusterError(
                f"no costs for {target.name}: the compiler says nothing of {program.name}; {remedy}"
            )
    return seconds


def _device(
    host: HostSpec, matmul: Sequence[MatmulPoint], memory: Sequence[MemoryPoint], costs: str
) -> DeviceSpec:
    """Return the device of a host with the compiler's numbers."""
    device = host.device
    rates = dict(dense_rates(matmul))
    bandwidth, of = memory_rate(memory), "products and memory"
    if host.peak is not None and bandwidth >= _AS_THE_PEAK * host.peak.memory_bytes_per_s:
        bandwidth, of = device.memory_bytes_per_s, "products; memory as described"
    others = [dtype for dtype, _ in device.flop_per_s if dtype not in rates]
    note = f"; {', '.join(others)} as described" if others else ""
    return replace(
        device,
        flop_per_s=tuple(sorted((dict(device.flop_per_s) | rates).items())),
        memory_bytes_per_s=bandwidth,
        dense_times=dense_times(matmul),
        source=f"{costs}: {of}{note}. Described: {device.source}",
    )
