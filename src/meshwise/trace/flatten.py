"""ClosedJaxpr -> flat `Program`: calls inlined, dead equations gone, bodies flat too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.typing import ArrayLike

from meshwise.errors import TraceError
from meshwise.jax_compat.callbacks import is_of_callback, unordered, with_a_result
from meshwise.jax_compat.jaxprs import (
    CALL_BODIES,
    REMAT_NAMES,
    Aval,
    ClosedJaxpr,
    Eqn,
    FlatJaxpr,
    Jaxpr,
    Literal,
    Primitive,
    Var,
    closed_jaxpr,
    dead_code_eliminated,
    is_tracer,
)
from meshwise.jax_compat.source_lines import SourceInfo, best_source, source_line
from meshwise.rules.callbacks import TOKEN, WITH_EFFECT, HostCall, host_call_p
from meshwise.rules.identity import constraint_p
from meshwise.rules.kernel import ForeignRule, foreign_kernel, kernel_p
from meshwise.rules.primitive import Equation, rebind
from meshwise.trace.foreign_primitives import implementation
from meshwise.trace.program import Node, Program
from meshwise.trace.row_loops import with_one_predicate
from meshwise.trace.structured import only_branch, solver_of, structured

_REFUSED = "the step has {} at {}; take it out: a parallel step has no effects but callbacks"
_TAKES_RESULTS = (
    "io_callback at {} returns values to the step, which one call for all devices cannot; return "
    "nothing from it, or use jax.pure_callback if the function has no effect"
)
_INNER = (
    "shard_map at {} stands in a custom derivative of a step that is cut into stages, where it is "
    "not taken apart; write the derivative without shard_map, or use one stage"
)
_IN_ORDER = (
    "a callback with ordered=True at {} is inside a loop or a branch, where it has no order with "
    "those outside; leave ordered out, or move it out of the loop or branch"
)


# Collectives over the axis of a `vmap` of the user's own, which is a dim by now.
_OVER_DIMS = {"psum": jax.lax.reduce_sum, "pmax": jax.lax.reduce_max, "pmin": jax.lax.reduce_min}


class _Builder:
    """Collects the values and nodes of one program; lives only inside `flatten`."""

    def __init__(
        self, foreign: Mapping[str, ForeignRule], mark_results: bool, is_body: bool
    ) -> None:
        self.foreign = foreign
        self.is_body = is_body
        # What the last ordered callback gave.
        self.token: int | None = None
        self.mark_results = mark_results
        self.results: set[int] = set()
        self.avals: list[Aval] = []
        self.nodes: list[Node] = []
        self.makers: dict[int, Node] = {}
        self.constants: dict[int, Any] = {}
        self._literals: dict[tuple[str, bytes], int] = {}

    def new(self, aval: Aval) -> int:
        self.avals.append(aval)
        return len(self.avals) - 1

    def constant(self, aval: Aval, value: ArrayLike) -> int:
        if is_tracer(value):
            raise TraceError(
                f"the step uses a value of type {aval.str_short()} that it does not get as an "
                "argument and that is being traced elsewhere (by jax.jit, jax.grad, jax.vmap or "
                "an earlier trace that kept it); pass it as an argument, and call the step with "
                "arrays"
            )
        if aval.shape == () and isinstance(value, (np.generic, np.ndarray, int, float, bool)):
            key = (str(aval.dtype), np.asarray(value, aval.dtype).tobytes())
            if key in self._literals:
                return self._literals[key]
            self._literals[key] = len(self.avals)
        ident = self.new(aval)
        self.constants[ident] = value
        return ident

    def known(self, ident: int) -> ArrayLike | None:
        """Return an integer or boolean that follows from constants alone; None for others."""
        aval, node = self.avals[ident], self.makers.get(ident)
        if ident in self.constants or node is None or node.bodies:
            return self.constants.get(ident)
        if aval.shape != () or not (jnp.issubdtype(aval.dtype, jnp.integer) or aval.dtype == bool):
            return None
        if not node.inputs:  # `platform_index` is known only where the program runs.
            return None
        found = (self.known(i) for i in node.inputs)
        operands = [value for value in found if value is not None]
        if len(operands) < len(node.inputs):
            return None
        with jax.ensure_compile_time_eval():
            return rebind(node.equation, operands)[node.outputs.index(ident)]

    def bind(
        self,
        primitive: Primitive,
        params: dict[str, Any],
        inputs: Sequence[int],
        avals: Sequence[Aval],
        source: SourceInfo | None,
    ) -> list[int]:
        outputs = [self.new(aval) for aval in avals]
        if primitive.name in self.foreign:
            rule = self.foreign[primitive.name]
            kernel = foreign_kernel(primitive, params, [self.avals[i] for i in inputs], rule)
            if kernel is not None:
                primitive, params = kernel_p, {"kernel": kernel}
        equation = Equation(
            primitive,
            params,
            tuple(self.avals[i] for i in inputs),
            tuple(avals),
            tuple(self.constants.get(i) for i in inputs),
        )
        structure, bodies = structured(
            equation,
            lambda body: flatten(body, self.foreign, is_body=True),
            lambda position: self.known(inputs[position]),
        )
        node = Node(equation, tuple(inputs), tuple(outputs), source, bodies, structure)
        self.nodes.append(node)
        self.makers.update(dict.fromkeys(outputs, node))
        return outputs

    def inline(
        self, jaxpr: FlatJaxpr, consts: list[int], args: list[int], outer: SourceInfo | None
    ) -> list[int]:
        """Append the equations of a jaxpr whose inputs already have ids."""
        env: dict[Var, int] = dict(zip(jaxpr.constvars, consts, strict=True))
        env.update(zip(jaxpr.invars, args, strict=True))

        def read(atom: Var) -> int:
            if isinstance(atom, Literal):
                return self.constant(atom.aval, atom.val)
            return env[atom]

        for eqn in jaxpr.eqns:
            source = best_source(eqn.source_info, outer)
            inputs = [read(atom) for atom in eqn.invars]
            name = eqn.primitive.name
            body_name = CALL_BODIES.get(name)
            if name == "loss_and_grad":
                body = eqn.params["expand"]()
                _refuse_effects(body.jaxpr)
                outputs = self.inline_closed(body, inputs, source)
                if self.mark_results:
                    outputs = self._each(jax.lax.copy_p, outputs, source)
                    self.results.update(outputs)
            elif body_name is not None:
                outputs = self._call(eqn, body_name, inputs, source)
            elif name == "optimization_barrier":
                outputs = self._barrier(inputs, source)
            elif name == "custom_linear_solve":
                solver, operands = solver_of(eqn.params, inputs)
                outputs = self.inline_closed(solver, operands, source)
            elif name == "cond" and (branch := only_branch(eqn.params, self.known(inputs[0]))):
                outputs = self.inline_closed(branch, inputs[1:], source)
            elif name in WITH_EFFECT or (
                name in ("cond", "scan") and eqn.effects and not eqn.outvars
            ):
                self._with_effect(eqn, inputs, source)
                outputs = []
            else:
                outputs = self._plain(eqn, inputs, source)
            env.update(zip(eqn.outvars, outputs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _call(
        self, eqn: Eqn, body_name: str, inputs: list[int], source: SourceInfo | None
    ) -> list[int]:
        params = eqn.params
        if eqn.primitive.name in REMAT_NAMES and params.get("differentiated"):
            inputs = self._barrier(inputs, source)
        inputs = self._constrained(inputs, params.get("in_shardings"), source)
        outputs = self.inline_closed(params[body_name], inputs, source)
        return self._constrained(outputs, params.get("out_shardings"), source)

    def _constrained(
        self, values: list[int], shardings: Sequence[Any] | None, source: SourceInfo | None
    ) -> list[int]:
        """Append what an inner `jax.jit` asks of the layouts of its operands or results."""
        if not shardings:
            return values
        return [
            self.bind(constraint_p, {"sharding": asked}, [i], [self.avals[i]], source)[0]
            if isinstance(asked, NamedSharding) and i not in self.constants
            else i
            for i, asked in zip(values, shardings, strict=True)
        ]

    def _plain(self, eqn: Eqn, inputs: list[int], source: SourceInfo | None) -> list[int]:
        name = eqn.primitive.name
        if name == "shard_map":
            raise TraceError(_INNER.format(source_line(source)))
        if name in _OVER_DIMS and all(isinstance(axis, int) for axis in eqn.params["axes"]):
            return self.inline_closed(_over_dims(eqn), inputs, source)
        body = None if name in self.foreign else implementation(eqn)
        if body is not None:
            return self.inline_closed(body, inputs, source)
        avals, primitive, params = [var.aval for var in eqn.outvars], eqn.primitive, eqn.params
        if name == "while":
            params, inputs = with_one_predicate(params, inputs)
        if name == constraint_p.name:
            primitive, params = constraint_p, {"sharding": params["sharding"]}
        return self.bind(primitive, params, inputs, avals, source)

    def inline_closed(
        self, body: ClosedJaxpr | Jaxpr, args: list[int], outer: SourceInfo | None
    ) -> list[int]:
        closed = closed_jaxpr(body)
        jaxpr: FlatJaxpr = closed.jaxpr
        consts = [
            self.constant(var.aval, value)
            for var, value in zip(jaxpr.constvars, closed.consts, strict=True)
        ]
        return self.inline(jaxpr, consts, args, outer)

    def _with_effect(self, eqn: Eqn, inputs: list[int], source: SourceInfo | None) -> None:
        """Append what is there only for its effect; ordered callbacks wait for each other."""
        name = eqn.primitive.name
        if name not in WITH_EFFECT:
            params, aval = with_a_result(name, eqn.params)
            self.bind(eqn.primitive, params, inputs, [aval], source)
            return
        if eqn.outvars:
            raise TraceError(_TAKES_RESULTS.format(source_line(source)))
        is_ordered, params = unordered(eqn.params)
        if is_ordered and self.is_body:
            raise TraceError(_IN_ORDER.format(source_line(source)))
        token = self.token if is_ordered else None
        if token is None:
            token = self.constant(TOKEN, np.int32(0))
        call = {"call": HostCall(eqn.primitive, params)}
        (token,) = self.bind(host_call_p, call, [token, *inputs], [TOKEN], source)
        if is_ordered:
            self.token = token

    def _barrier(self, inputs: list[int], source: SourceInfo | None) -> list[int]:
        # Values recomputed by remat must not be merged with the ones of the forward pass.
        return self._each(jax.lax.optimization_barrier_p, inputs, source)

    def _each(
        self, primitive: Primitive, inputs: list[int], source: SourceInfo | None
    ) -> list[int]:
        # One equation a value: operands of one equation share its loops, these share none.
        return [
            i if i in self.constants else self.bind(primitive, {}, [i], [self.avals[i]], source)[0]
            for i in inputs
        ]


def _over_dims(eqn: Eqn) -> ClosedJaxpr:
    """Return what a collective over the axis of a `vmap` means."""
    reduced = partial(_OVER_DIMS[eqn.primitive.name], axes=eqn.params["axes"])
    avals = [var.aval for var in eqn.invars]
    return jax.make_jaxpr(lambda *operands: [reduced(x) for x in operands])(*avals)


def _refuse_effects(jaxpr: Jaxpr) -> None:
    others = [effect for effect in jaxpr.effects if not is_of_callback(effect)]
    if not others:
        return
    names = ", ".join(sorted(map(str, others)))
    where = next(
        (source_line(e.source_info) for e in jaxpr.eqns if e.effects & set(others)), "unknown line"
    )
    raise TraceError(_REFUSED.format(f"side effects ({names})", where))


def flatten(
    closed: ClosedJaxpr,
    foreign: Mapping[str, ForeignRule] | None = None,
    *,
    mark_results: bool = False,
    is_body: bool = False,
) -> Program:
    """Make the flat program of a closed jaxpr.

    Args:
        closed: The jaxpr.
        foreign: Rules for primitives, by name: such equations are bound as opaque kernels.
        mark_results: Give what leaves the loss ids of its own: `Program.results`.
        is_body: Whether this is the body of a loop or a branch.

    Raises:
        TraceError: the program has effects other than callbacks, a callback that returns values or
            is ordered in a loop, or a foreign tracer.
    """
    _refuse_effects(closed.jaxpr)
    jaxpr = cast(FlatJaxpr, dead_code_eliminated(closed.jaxpr))
    builder = _Builder(foreign or {}, mark_results, is_body)
    consts = [
        builder.constant(var.aval, value)
        for var, value in zip(jaxpr.constvars, closed.consts, strict=True)
    ]
    args = [builder.new(var.aval) for var in jaxpr.invars]
    outputs = builder.inline(jaxpr, consts, args, None)
    return Program(
        avals=tuple(builder.avals),
        inputs=tuple(args),
        nodes=tuple(builder.nodes),
        outputs=tuple(outputs),
        constants=builder.constants,
        results=frozenset(builder.results),
    )
