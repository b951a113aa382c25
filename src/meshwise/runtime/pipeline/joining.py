"""What joins the layers of a step, on the first mesh: a global norm, a step counter, a loss scale.

Small values only: scalars, or a few statistics for each tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
from jax import Array
from jax.sharding import Mesh, NamedSharding

from meshwise.graph.layout import Layout, replicated
from meshwise.jax_compat.arrays import with_checked_layouts
from meshwise.jax_compat.jaxprs import Aval, Var
from meshwise.program.emit import UpdateSpec
from meshwise.program.names import (
    Activation,
    Gradient,
    GradientTerm,
    LossValue,
    Name,
    SentValue,
    SharedValue,
    StepArgument,
    StepResult,
    StepValue,
)
from meshwise.runtime.devices import has_devices_here
from meshwise.runtime.pipeline.compiled import CompiledProgram
from meshwise.spmd.part import border_spec
from meshwise.trace.evaluate import run_program
from meshwise.trace.flatten import flatten
from meshwise.trace.layers.equations import traced, variables
from meshwise.trace.layers.layering import Layering

# Inputs or outputs of an executable, with their global shapes and dtypes.
Ends: TypeAlias = Mapping[Name, jax.ShapeDtypeStruct]


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedGradient:
    """The gradient of a parameter of which more than one layer sends one.

    Attributes:
        mesh: The mesh of the layer that owns the parameter.
        layout: The layout in which it takes the gradient.
        num_senders: How many layers send one.
    """

    mesh: Mesh
    layout: Layout
    num_senders: int


class Joining:
    """Executables that join layers.

    Attributes:
        programs: The executables, in the order of their numbers.
        spec: The same as the instructions see them.
    """

    def __init__(
        self, layers: Layering, mesh: Mesh, tied: Mapping[int, TiedGradient], first: int
    ) -> None:
        """Compile.

        Args:
            layers: The layers of the step.
            mesh: The first mesh.
            tied: Gradients that are added up, by the number of the parameter.
            first: The number of the first executable.
        """
        self._layers, self._update = layers, layers.update
        self.programs: list[CompiledProgram] = []
        joins = [self._join(mesh, phase) for phase in range(self._update.num_phases)]
        passed, common = self._common(mesh)
        adders = {r: self._adder(r, gradient) for r, gradient in tied.items()}
        losses = layers.split.forward.jaxpr.outvars[: 1 + layers.split.num_aux]
        spec = [program.spec(first + n) for n, program in enumerate(self.programs)]
        self.spec = UpdateSpec(
            joins=tuple(spec[n] for n in joins),
            common=spec[common],
            values={
                Activation(v): tuple(k for k, w in enumerate(losses) if w is v)
                for v in variables(losses)
            },
            adders={r: spec[n] for r, n in adders.items()},
            passed=tuple(passed),
        )

    def _sent(self, phase: int) -> list[Var]:
        """Variables that layers send in a phase and before."""
        shares = [self._update.share(k, k) for k in range(len(self._layers.ranges))]
        return [v for p in range(phase + 1) for share in shares for v in share.sends[p]]

    def _join(self, mesh: Mesh, phase: int) -> int:
        update = self._update
        made = update.joined_in(phase)
        sent = self._sent(phase)
        inputs = {**self._outside(made, sent), **dict(_end(SentValue(v), v.aval) for v in sent)}

        def run(*operands: Array) -> list[Array]:
            given, values, rest = self._taken_apart(inputs, operands)
            found = update.join(phase, given, values, rest)
            return [found[v] for v in made]

        outputs = dict(_end(SharedValue(v), v.aval) for v in made)
        return self._compiled(f"join {phase} of the update", inputs, outputs, run, mesh)

    def _common(self, mesh: Mesh) -> tuple[list[tuple[int, int]], int]:
        """Results that are arguments, and the executable that computes the others."""
        update = self._update
        results = update.common_results()
        passed = [
            (j, update.position[v])
            for j, v in results.items()
            if variables([v]) and v in update.position
        ]
        wanted = [j for j in results if j not in dict(passed)]
        shared = [v for e in update.joining for v in e.outvars]
        made = variables(results[j] for j in wanted)
        inputs = {
            **self._outside(made, shared),
            **dict(_end(SharedValue(v), v.aval) for v in shared),
        }

        def run(*operands: Array) -> list[Array]:
            given, values, rest = self._taken_apart(inputs, operands)
            found = update.common(given, values, rest)
            return [found[j] for j in wanted]

        outputs = dict(_end(StepResult(j), results[j].aval) for j in wanted)
        return passed, self._compiled("common results", inputs, outputs, run, mesh)

    def _adder(self, parameter: int, tied: TiedGradient) -> int:
        """Compile the sum of the gradients of a tied parameter that several layers send."""
        root = self._layers.split.roots[parameter].aval
        aval = jax.ShapeDtypeStruct(root.shape, root.dtype)
        terms = [GradientTerm(parameter, n) for n in range(tied.num_senders)]
        inputs = {Name(term, tied.layout): aval for term in terms}
        outputs = {Name(Gradient(parameter), tied.layout): aval}

        def run(*operands: Array) -> list[Array]:
            return [sum(operands[1:], operands[0])]

        return self._compiled("sum of tied gradients", inputs, outputs, run, tied.mesh)

    def _outside(self, wanted: Sequence[Var], known: Sequence[Var]) -> Ends:
        """Find the arguments and values of the loss that variables follow from."""
        update, there = self._update, set(known)
        equations = update.behind([v for v in wanted if v not in there])
        read = {v for e in equations for v in variables(e.invars)} | set(wanted)
        read -= there
        avals = self._layers.split.in_avals
        arguments = (
            _end(StepArgument(i), avals[i]) for v, i in update.position.items() if v in read
        )
        values = (_end(LossValue(k), v.aval) for v, k in update.value_at.items() if v in read)
        return {**dict(arguments), **dict(values)}

    def _taken_apart(
        self, inputs: Ends, operands: Sequence[Array]
    ) -> tuple[list[Array], list[Array], dict[Any, Array]]:
        """Return arguments and values of the loss by number, and all others by variable."""
        given: list[Any] = [None] * len(self._layers.split.in_avals)
        values: list[Any] = [None] * len(self._update.values)
        rest: dict[Any, Array] = {}
        for name, operand in zip(inputs, operands, strict=True):
            match name.value:
                case StepArgument(number=number):
                    given[number] = operand
                case LossValue(number=number):
                    values[number] = operand
                case SentValue(variable=variable) | SharedValue(variable=variable):
                    rest[variable] = operand
                case other:
                    raise AssertionError(f"{other} is not joined")
        return given, values, rest

    def _compiled(
        self,
        label: str,
        inputs: Ends,
        outputs: Ends,
        run: Callable[..., list[Array]],
        mesh: Mesh,
    ) -> int:
        def sharding(name: Name) -> NamedSharding:
            return NamedSharding(mesh, border_spec(name.layout, mesh.axis_names))

        given = tuple(inputs.values())
        shardings = tuple(map(sharding, inputs))
        made = tuple(map(sharding, outputs))
        # Constraints in its loops and branches are for another mesh; a flat program drops them.
        program = flatten(traced(run, given))
        lowered = jax.jit(
            lambda *operands: run_program(program, operands),
            in_shardings=shardings,
            out_shardings=list(made),
        ).lower(*given)
        self.programs.append(
            CompiledProgram(
                name=label,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                places=tuple(range(len(outputs))),
                donated=(),
                executable=(
                    with_checked_layouts(lowered.compile()) if has_devices_here(mesh) else None
                ),
                in_shardings=shardings,
                out_shardings=made,
                in_avals=given,
                out_avals=tuple(jax.ShapeDtypeStruct(o.shape, o.dtype) for o in lowered.out_info),
            )
        )
        return len(self.programs) - 1


def _end(value: StepValue, aval: Aval) -> tuple[Name, jax.ShapeDtypeStruct]:
    """Name a small value that is replicated, with its shape and dtype."""
    spec = jax.ShapeDtypeStruct(aval.shape, aval.dtype)
    return Name(value, replicated(len(aval.shape))), spec
