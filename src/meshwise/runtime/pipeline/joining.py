"""What joins the layers of a step, on the first mesh: a global norm, a step counter, a loss scale.

Small values only: scalars, or a few statistics for each tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from meshwise.graph.layout import Layout, replicated
from meshwise.program.emit import UpdateSpec
from meshwise.program.names import Name
from meshwise.runtime.pipeline.compiled import CompiledProgram
from meshwise.spmd.part import border_spec
from meshwise.trace.layers.equations import variables
from meshwise.trace.layers.layering import Layering


class Joining:
    """Executables of what joins layers.

    Attributes:
        programs: In the order of their numbers.
        spec: As the instructions see them.
    """

    def __init__(
        self, layers: Layering, mesh: Mesh, tied: Mapping[int, tuple[Mesh, Layout, int]], first: int
    ) -> None:
        """Compile.

        Args:
            layers: Of the step.
            mesh: The first mesh.
            tied: For each parameter that several layers send gradients of: the mesh and the layout
                of its owner's gradient, and how many send.
            first: Number of the first executable.
        """
        self._layers, self._update = layers, layers.update
        self.programs: list[CompiledProgram] = []
        joins = [self._join(mesh, phase) for phase in range(self._update.num_phases)]
        passed, common = self._common(mesh)
        adders = {r: self._adder(r, *owner) for r, owner in tied.items()}
        losses = layers.split.forward.jaxpr.outvars[: 1 + layers.split.num_aux]
        spec = [program.spec(first + n) for n, program in enumerate(self.programs)]
        self.spec = UpdateSpec(
            joins=tuple(spec[n] for n in joins),
            common=spec[common],
            values={v: tuple(k for k, w in enumerate(losses) if w is v) for v in variables(losses)},
            adders={r: spec[n] for r, n in adders.items()},
            passed=tuple(passed),
        )

    def _sent(self, phase: int) -> list[Any]:
        """Variables that layers send in a phase and before."""
        shares = [self._update.share(k, k) for k in range(len(self._layers.ranges))]
        return [v for p in range(phase + 1) for share in shares for v in share.sends[p]]

    def _join(self, mesh: Mesh, phase: int) -> int:
        update = self._update
        made = update.joined_in(phase)
        sent = self._sent(phase)
        names = [*self._outside(made, sent), *(_name("sent", v, v.aval) for v in sent)]

        def run(*operands: Any) -> list[Any]:
            given, values, rest = self._taken_apart(names, operands)
            found = update.join(phase, given, values, rest)
            return [found[v] for v in made]

        outputs = [_name("shared", v, v.aval) for v in made]
        return self._compiled(f"join {phase} of the update", names, outputs, run, mesh)

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
        names = [*self._outside(made, shared), *(_name("shared", v, v.aval) for v in shared)]

        def run(*operands: Any) -> list[Any]:
            given, values, rest = self._taken_apart(names, operands)
            found = update.common(given, values, rest)
            return [found[j] for j in wanted]

        outputs = [_name("result", j, results[j].aval) for j in wanted]
        return passed, self._compiled("common results", names, outputs, run, mesh)

    def _adder(self, root: int, mesh: Mesh, layout: Layout, count: int) -> int:
        """Adds the gradients of a tied parameter that several layers send."""
        names = [Name("gradient", (root, n), layout) for n in range(count)]
        outputs = [Name("gradient", root, layout)]

        def run(*operands: Any) -> list[Any]:
            return [sum(operands[1:], operands[0])]

        return self._compiled("sum of tied gradients", names, outputs, run, mesh)

    def _outside(self, wanted: Sequence[Any], known: Sequence[Any]) -> list[Name]:
        """Arguments and values of the loss that variables follow from."""
        update, there = self._update, set(known)
        equations = update.behind([v for v in wanted if v not in there])
        read = {v for e in equations for v in variables(e.invars)} | set(wanted)
        read -= there
        avals = self._layers.split.in_avals
        found = [_name("argument", i, avals[i]) for v, i in update.position.items() if v in read]
        return [
            *found,
            *(_name("value", k, v.aval) for v, k in update.value_at.items() if v in read),
        ]

    def _taken_apart(
        self, names: Sequence[Name], operands: Sequence[Any]
    ) -> tuple[list[Any], list[Any], dict[Any, Any]]:
        given: list[Any] = [None] * len(self._layers.split.in_avals)
        values: list[Any] = [None] * len(self._update.values)
        rest: dict[Any, Any] = {}
        for name, operand in zip(names, operands, strict=True):
            match name.kind:
                case "argument":
                    given[name.what] = operand
                case "value":
                    values[name.what] = operand
                case _:
                    rest[name.what] = operand
        return given, values, rest

    def _aval(self, name: Name) -> Any:
        match name.kind:
            case "argument":
                aval = self._layers.split.in_avals[name.what]
            case "value":
                aval = self._update.values[name.what].aval
            case "gradient":
                aval = self._layers.split.roots[name.what[0]].aval
            case _:
                aval = name.what.aval
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype)

    def _compiled(
        self,
        label: str,
        inputs: Sequence[Name],
        outputs: Sequence[Name],
        run: Callable[..., list[Any]],
        mesh: Mesh,
    ) -> int:
        def sharding(name: Name) -> NamedSharding:
            return NamedSharding(mesh, border_spec(name.layout, mesh.axis_names))

        given = [self._aval(name) for name in inputs]
        shardings = tuple(map(sharding, inputs))
        lowered = jax.jit(
            run, in_shardings=shardings, out_shardings=list(map(sharding, outputs))
        ).lower(*given)
        self.programs.append(
            CompiledProgram(
                name=label,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                places=tuple(range(len(outputs))),
                donated=(),
                run=lowered.compile(),
                in_shardings=shardings,
                in_avals=tuple(given),
                out_avals=tuple(jax.ShapeDtypeStruct(o.shape, o.dtype) for o in lowered.out_info),
            )
        )
        return len(self.programs) - 1


def _name(kind: str, what: Any, aval: Any) -> Name:
    return Name(kind, what, replicated(len(aval.shape)))
