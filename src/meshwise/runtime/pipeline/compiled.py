"""Programs of a stage as XLA executables on its devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jax.stages import Compiled, Lowered, Wrapped

from meshwise.cluster.mesh import LogicalMesh
from meshwise.program.names import Name, ProgramSpec, StepResult, is_sum
from meshwise.runtime.compile import checked
from meshwise.runtime.devices import has_devices_here
from meshwise.spmd.layer import DeviceProgram
from meshwise.spmd.part import border_spec, packed, unpacked
from meshwise.spmd.program import abstract_mesh, compile_options, placed_sharding
from meshwise.system.identity import Same
from meshwise.system.progress import say

# Global shape and dtype of an input as it comes in (`border_spec`).
Specs: TypeAlias = Callable[[Name], jax.ShapeDtypeStruct]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledProgram:
    """One program of a layer.

    Attributes:
        name: For messages and traces.
        inputs: What it takes.
        outputs: What it makes; several may be one value.
        places: For each output its place among the results.
        donated: Positions of inputs that it overwrites.
        executable: What runs, on global arrays; None where other processes run it.
        in_shardings: The shardings of the inputs.
        out_shardings: The shardings of the results.
        in_avals: Global shapes and dtypes of the inputs, as they come in.
        out_avals: Global shapes and dtypes of the outputs, as they leave.
    """

    name: str
    inputs: tuple[Name, ...]
    outputs: tuple[Name, ...]
    places: tuple[int, ...]
    donated: tuple[int, ...]
    executable: Compiled | None
    in_shardings: tuple[NamedSharding, ...]
    out_shardings: tuple[NamedSharding, ...]
    in_avals: tuple[jax.ShapeDtypeStruct, ...]
    out_avals: tuple[jax.ShapeDtypeStruct, ...]

    @property
    def run(self) -> Compiled:
        """The executable, in a process that runs it."""
        assert self.executable is not None, f"{self.name} runs in another process"
        return self.executable

    @property
    def text(self) -> str:
        """The optimised HLO."""
        return self.run.as_text() or ""

    def spec(self, number: int) -> ProgramSpec:
        """Return the program as instructions see it."""
        return ProgramSpec(
            number=number,
            label=self.name,
            inputs=self.inputs,
            outputs=self.outputs,
            places=self.places,
            donated=self.donated,
        )


# Texts of programs that call functions of the host; they number these and do not name them.
_CALLS_HOST = ("_callback", "is_host_transfer = true")


class CompilationCache:
    """Executables by the text of their programs: equal layers on the same devices share one."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, tuple[Any, ...]], Compiled] = {}

    def compiled(self, lowered: Lowered, mesh: Mesh, name: str) -> Compiled:
        """Return the executable of a lowered program.

        Raises:
            ProgramError: on XLA:CPU collectives would race.
        """
        text = lowered.as_text()
        if any(said in text for said in _CALLS_HOST):
            return checked(lowered, mesh.devices, name)
        key = (text, tuple(mesh.devices.flat))
        if key not in self._known:
            say(f"compiling {name}")
            self._known[key] = checked(lowered, mesh.devices, name)
        return self._known[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredProgram:
    """One program of a layer before it is compiled.

    Attributes:
        function: What it does on local tiles.
        places: For each output its place among the results.
        jitted: On global arrays.
        lowered: The same, lowered.
        in_shardings: The shardings of the inputs.
        out_shardings: The shardings of the results.
        in_avals: Global shapes and dtypes of the inputs, as they come in.
        out_avals: Global shapes and dtypes of the outputs, as they leave.
    """

    function: DeviceProgram
    places: tuple[int, ...]
    jitted: Wrapped
    lowered: Lowered
    in_shardings: tuple[NamedSharding, ...]
    out_shardings: tuple[NamedSharding, ...]
    in_avals: tuple[jax.ShapeDtypeStruct, ...]
    out_avals: tuple[jax.ShapeDtypeStruct, ...]

    @property
    def inputs(self) -> tuple[Name, ...]:
        """What it takes."""
        return self.function.inputs

    @property
    def outputs(self) -> tuple[Name, ...]:
        """What it makes; several may be one value."""
        return self.function.outputs


def compiled_program(
    name: str, made: LoweredProgram, mesh: Mesh, cache: CompilationCache
) -> CompiledProgram:
    """Compile a program.

    Args:
        name: A name for messages.
        made: The lowered program.
        mesh: Its devices.
        cache: Executables that are there already.

    Returns:
        The program with its executable.

    Raises:
        ProgramError: on XLA:CPU collectives would race.
    """
    function = made.function
    return CompiledProgram(
        name=name,
        inputs=function.inputs,
        outputs=function.outputs,
        places=made.places,
        donated=function.donated,
        executable=cache.compiled(made.lowered, mesh, name) if has_devices_here(mesh) else None,
        in_shardings=made.in_shardings,
        out_shardings=made.out_shardings,
        in_avals=made.in_avals,
        out_avals=made.out_avals,
    )


def lowered_program(
    function: DeviceProgram,
    specs: Specs,
    logical: LogicalMesh,
    mesh: Mesh | AbstractMesh,
    *,
    platform: str,
    overwrites: bool = True,
) -> LoweredProgram:
    """Lower a program.

    Args:
        function: What it does on local tiles.
        specs: Gives the global shape and dtype of each input.
        logical: The mesh as planned.
        mesh: Its devices; it may have more axes, along which all do the same.
        platform: The platform of its devices, as "cpu".
        overwrites: Whether inputs that are donated are.

    Returns:
        The program on global arrays.
    """
    names = logical.names
    in_specs = tuple(border_spec(n.layout, names) for n in function.inputs)
    given = tuple(specs(n) for n in function.inputs)
    ends = [border_spec(n.layout, names) for n in function.outputs]
    distinct = _Distinct(function, ends)
    places = distinct.traced_places(abstract_mesh(logical), in_specs, given)
    out_specs = tuple(spec for n, spec in enumerate(ends) if places.index(places[n]) == n)
    mapped = jax.shard_map(
        distinct, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )
    in_shardings = tuple(
        placed_sharding(mesh, spec, in_host=i in function.in_host)
        for i, spec in enumerate(in_specs)
    )
    kept = {places[i] for i in function.out_host}
    out_shardings = tuple(
        placed_sharding(mesh, spec, in_host=n in kept) for n, spec in enumerate(out_specs)
    )
    jitted = jax.jit(
        mapped,
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        donate_argnums=function.donated if overwrites else (),
        # A stage of one device is one of several: its memory is planned as theirs is.
        compiler_options=compile_options(platform, max(logical.num_devices, 2)),
    )
    lowered = jitted.trace(*given).lower(
        lowering_platforms=(platform,) if isinstance(mesh, AbstractMesh) else None
    )
    made = [jax.ShapeDtypeStruct(o.shape, o.dtype) for o in lowered.out_info]
    return LoweredProgram(
        function=function,
        places=places,
        jitted=jitted,
        lowered=lowered,
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        in_avals=given,
        out_avals=tuple(made[place] for place in places),
    )


def platform_of(mesh: Mesh | AbstractMesh) -> str:
    """Return the platform of the devices of a mesh, as "cpu"."""
    assert isinstance(mesh, Mesh)
    return str(mesh.devices.flat[0].platform)


class _Distinct:
    """A program that returns each value once: an activation that leaves may be kept, too.

    Attributes:
        places: For each output its place among the results, from the last call on.
    """

    def __init__(self, function: DeviceProgram, ends: Sequence[PartitionSpec]) -> None:
        self.function, self.ends = function, ends
        self.places: list[int] = []
        self.__name__ = "distinct"

    def traced_places(
        self,
        mesh: AbstractMesh,
        in_specs: Sequence[PartitionSpec],
        given: Sequence[jax.ShapeDtypeStruct],
    ) -> tuple[int, ...]:
        """Return `places`: which results are one value shows only when the program is traced."""
        nothing = jax.shard_map(
            lambda *args: (self(*args), ())[1],
            mesh=mesh,
            in_specs=tuple(in_specs),
            out_specs=(),
            check_vma=False,
        )
        jax.eval_shape(nothing, *given)
        return tuple(self.places)

    def __call__(self, *args: jax.Array) -> tuple[jax.Array, ...]:
        function = self.function
        tiles = [unpacked(a, n.layout) for a, n in zip(args, function.inputs, strict=True)]
        results = function.run(tiles)
        seen: dict[object, int] = {}
        returned: list[jax.Array] = []
        self.places = []
        for value, n, spec in zip(results, function.outputs, self.ends, strict=True):
            # What a later program overwrites has a buffer of its own.
            is_overwritten = is_sum(n.value) or isinstance(n.value, StepResult)
            key = (Same(value), spec, n if is_overwritten else None)
            if key not in seen:
                seen[key] = len(returned)
                returned.append(packed(value, n.layout))
            self.places.append(seen[key])
        return tuple(returned)
