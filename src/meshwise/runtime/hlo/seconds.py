"""Seconds of the instructions of a compiled program.

They are what the compiler itself says, or, where it says nothing of the whole program, the larger
of two: FLOP at the rate that the device reaches, and bytes at its bandwidth.
"""

from __future__ import annotations

import math

from meshwise.cluster.mesh import DeviceSpec
from meshwise.runtime.hlo.collectives import collective_kind
from meshwise.runtime.hlo.costs import compiler_seconds
from meshwise.runtime.hlo.flop import dense_flop
from meshwise.runtime.hlo.loops import called_names, trip_count
from meshwise.runtime.hlo.module import Computation, HloInstruction, Module

# Names of HLO for the dtypes of products, as `DeviceSpec` names them.
_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}
_NOTHING = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "domain")
_WITH_BODIES = ("while", "conditional", "call")
# They read as much of their first operand as they make.
_PARTS = ("slice", "dynamic-slice", "gather")


class Seconds:
    """Seconds of the instructions of one program, each without its collectives."""

    def __init__(self, module: Module, device: DeviceSpec, cycles_per_s: float | None) -> None:
        """Read a program.

        Args:
            module: The program.
            device: The rates of a device, where the compiler says nothing.
            cycles_per_s: Clock rate of the core, where the compiler counts cycles.
        """
        self._module = module
        self._device = device
        self._cycles_per_s = cycles_per_s
        self.are_the_compilers = any(
            compiler_seconds(instruction, cycles_per_s) is not None
            for computation in module.computations.values()
            for instruction in computation.instructions
        )

    def of(self, computation: Computation, instruction: HloInstruction) -> float:
        """Return the seconds of one execution; a loop of unknown trips counts once.

        Args:
            computation: Where it stands.
            instruction: The instruction.
        """
        if collective_kind(instruction) is not None or instruction.opcode in _NOTHING:
            return 0.0
        if instruction.opcode in _WITH_BODIES:
            is_loop = instruction.opcode == "while"
            trips = trip_count(self._module, computation, instruction) if is_loop else 1
            inner = (self._module.computations[name] for name in called_names(instruction))
            return (trips or 1) * math.fsum(self.of(c, i) for c in inner for i in c.instructions)
        if self.are_the_compilers:
            return compiler_seconds(instruction, self._cycles_per_s) or 0.0
        if instruction.opcode.endswith(("-start", "-update", "-done")):
            return 0.0
        num_bytes = self._bytes(computation, instruction)
        return max(
            self._dense_s(computation, instruction), num_bytes / self._device.memory_bytes_per_s
        )

    def _dense_s(self, computation: Computation, instruction: HloInstruction) -> float:
        if instruction.opcode == "fusion":
            (name,) = called_names(instruction)
            inner = self._module.computations[name]
            return math.fsum(self._dense_s(inner, each) for each in inner.instructions)
        flop = dense_flop(computation, instruction)
        if not flop:
            return 0.0
        dtype = computation.operand_shapes(instruction)[0][0].dtype
        return self._device.dense_s(flop, _DTYPES.get(dtype, dtype))

    def _bytes(self, computation: Computation, instruction: HloInstruction) -> int:
        """Return the bytes that are read and written; of what is cut or pasted only that part."""
        shapes = computation.operand_shapes(instruction)
        sizes = [sum(shape.num_bytes for shape in operand) for operand in shapes]
        # What follows the first result of a library's call is its workspace.
        made = instruction.shapes[:1] if instruction.opcode == "custom-call" else instruction.shapes
        result = sum(shape.num_bytes for shape in made)
        if instruction.opcode != "fusion":
            return _moved(instruction, sizes, result)
        (name,) = called_names(instruction)
        inner = self._module.computations[name]
        for inside in inner.instructions:
            if inside.opcode == "parameter":
                number = int(inside.literal)
                sizes[number] = min(sizes[number], _read(inner, inside, sizes[number]))
        root = inner.root
        if root.opcode == "dynamic-update-slice":
            result = sum(shape.num_bytes for shape in inner.operand_shapes(root)[1])
        return sum(sizes) + result


def _moved(instruction: HloInstruction, sizes: list[int], result: int) -> int:
    if instruction.opcode in _PARTS:
        return 2 * result
    if instruction.opcode == "dynamic-update-slice":
        return 2 * sizes[1]
    return sum(sizes) + result


def _read(inner: Computation, parameter: HloInstruction, whole: int) -> int:
    """Return the bytes of a parameter that a fusion reads, at most all of it."""
    total = 0
    for user in inner.instructions:
        if parameter.name not in user.operands:
            continue
        if user.opcode in _PARTS and user.operands[0] == parameter.name:
            total += sum(shape.num_bytes for shape in user.shapes)
        elif user.opcode != "dynamic-update-slice" or user.operands[0] != parameter.name:
            return whole
    return total
