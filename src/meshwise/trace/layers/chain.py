"""The forward pass as a chain of operators that can be cut into layers.

Only equations that depend on both parameters and the batch stand in the chain.  All others (masks,
casts of weights, random bits, what is made of the batch alone) are made again in every layer that
needs them, so that what crosses a cut is an activation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from meshwise.inter.clustering.operator_chain import OperatorChain
from meshwise.jax_compat.jaxprs import Aval, Eqn, FlatJaxpr, Literal, Var, bodies
from meshwise.jax_compat.source_lines import source_line
from meshwise.rules.primitive import Equation
from meshwise.rules.table import RULES
from meshwise.trace.layers.equations import dependent, variables
from meshwise.trace.layers.split import SplitStep
from meshwise.trace.to_graph import RuleCache, itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The forward pass, in program order.

    Attributes:
        links: Equations that can be cut apart.
        support: All other equations.
        flop: The FLOP of each link, on whole tensors.
        is_heavy: Whether a link holds a dense product or a convolution.
        reads: For each link the links whose results it reads, with the bytes of these results.
        maker: For each variable made in the chain its link.
        where: Source line of each link.
    """

    links: tuple[Eqn, ...]
    support: tuple[Eqn, ...]
    flop: tuple[float, ...]
    is_heavy: tuple[bool, ...]
    reads: tuple[tuple[tuple[int, Var], ...], ...]
    maker: Mapping[Var, int]
    where: tuple[str, ...]


def num_bytes(aval: Aval) -> int:
    """Bytes of a value."""
    return math.prod(aval.shape) * itemsize(aval.dtype)


def chain_of(split: SplitStep) -> Chain:
    """Find the chain of a step's forward pass.

    Args:
        split: The step, taken apart at its loss.

    Returns:
        The chain.
    """
    jaxpr = split.forward.jaxpr
    varied = dependent(jaxpr.eqns, split.roots)
    batch = dependent(jaxpr.eqns, [jaxpr.invars[i] for i in split.batch_dims])
    links = [e for e in jaxpr.eqns if any(v in varied and v in batch for v in e.outvars)]
    chosen = set(links)
    maker = {v: k for k, e in enumerate(links) for v in e.outvars}
    work = _Work()
    counted = [work.of(e) for e in links]
    return Chain(
        links=tuple(links),
        support=tuple(e for e in jaxpr.eqns if e not in chosen),
        flop=tuple(flop for flop, _ in counted),
        is_heavy=tuple(heavy for _, heavy in counted),
        reads=tuple(
            tuple((maker[v], v) for v in dict.fromkeys(variables(e.invars)) if v in maker)
            for e in links
        ),
        maker=maker,
        where=tuple(source_line(e.source_info) for e in links),
    )


def operator_chain(chain: Chain) -> OperatorChain:
    """Return the chain as plain numbers, for clustering.

    Args:
        chain: The chain.

    Returns:
        Its FLOP, its values and who reads them.
    """
    values = {v: n for n, v in enumerate(dict.fromkeys(v for r in chain.reads for _, v in r))}
    return OperatorChain(
        flop=np.array(chain.flop),
        is_heavy=np.array(chain.is_heavy),
        producer=np.array([chain.maker[v] for v in values], np.int64),
        value_bytes=np.array([num_bytes(v.aval) for v in values], np.int64),
        read_value=np.array([values[v] for r in chain.reads for _, v in r], np.int64),
        read_by=np.array([k for k, r in enumerate(chain.reads) for _ in r], np.int64),
    )


class _Work:
    """FLOP of equations; equal ones are counted once."""

    def __init__(self) -> None:
        self.rules = RuleCache()
        self.bodies: dict[FlatJaxpr, tuple[float, bool]] = {}

    def of(self, eqn: Eqn) -> tuple[float, bool]:
        """FLOP, and whether a dense product or convolution is among it."""
        if eqn.primitive.name in RULES:
            equation = Equation(
                eqn.primitive,
                eqn.params,
                tuple(v.aval for v in eqn.invars),
                tuple(v.aval for v in eqn.outvars),
                tuple(v.val if isinstance(v, Literal) else None for v in eqn.invars),
            )
            row, _, flop, _ = self.rules.lookup(equation)
            return flop, row.heavy
        inner = bodies(eqn.params)
        if not inner:
            return float(sum(math.prod(v.aval.shape) for v in eqn.outvars)), False
        if eqn.primitive.name.startswith("custom_"):
            inner = inner[:1]  # the function itself; its derivatives are not run forward
        parts = [self._body(body) for body in inner]
        trips = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        if eqn.primitive.name == "cond":
            return max(flop for flop, _ in parts), any(heavy for _, heavy in parts)
        return trips * sum(flop for flop, _ in parts), any(heavy for _, heavy in parts)

    def _body(self, jaxpr: FlatJaxpr) -> tuple[float, bool]:
        if jaxpr not in self.bodies:
            parts = [self.of(eqn) for eqn in jaxpr.eqns]
            self.bodies[jaxpr] = sum(f for f, _ in parts), any(h for _, h in parts)
        return self.bodies[jaxpr]
