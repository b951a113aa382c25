"""Which equations of the update belong to which piece of the forward pass.

An equation that follows from the gradients of one piece alone is that piece's; one that joins
several pieces (the global norm of all gradients) must be small and is shared by all; one that
follows from no gradient (a step counter, a learning rate) is repeated wherever it is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jax import Array

from meshwise.errors import TraceError
from meshwise.jax_compat.jaxprs import Eqn, Var
from meshwise.jax_compat.source_lines import source_line
from meshwise.trace.layers.chain import num_bytes
from meshwise.trace.layers.equations import needed, read, run, variables
from meshwise.trace.layers.split import SplitStep
from meshwise.units import bytes_text

# What joins pieces is sent to all of them: scalars, or a few statistics for each tensor.
_SHARED_BYTES = 1 << 16
_SHARED = -2
_FREE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one piece does of the update.

    Attributes:
        owned: Parameters that it updates.
        tied: Those of them that other pieces read too.
        equations: In order.
        arguments: Positions of the step's arguments that it reads.
        values: Positions, among the value and the auxiliary results of the loss, that it reads.
        results: Positions of the step's results that it makes.
        state: Positions of the step's arguments that its results overwrite, in their order.
        shared: Variables joined from several pieces that it reads.
        sends: Variables of its own that go into what joins pieces, phase by phase: those of a later
            phase follow from what earlier ones joined (the norm of clipped gradients).
    """

    owned: frozenset[int]
    tied: frozenset[int]
    equations: tuple[Eqn, ...]
    arguments: tuple[int, ...]
    values: tuple[int, ...]
    results: tuple[int, ...]
    state: tuple[int, ...]
    shared: tuple[Var, ...]
    sends: tuple[tuple[Var, ...], ...]


class Update:
    """The update of one step, divided among layers."""

    def __init__(self, split: SplitStep, readers: Sequence[Sequence[int]]) -> None:
        """Divide.

        Args:
            split: The step.
            readers: For each parameter the layers that read it; the first one owns it.

        Raises:
            TraceError: an equation joins tensors of several layers.
        """
        self.split = split
        jaxpr = split.update.jaxpr
        count = len(split.in_avals)
        gradients = jaxpr.invars[len(jaxpr.invars) - split.num_roots :]
        self.gradients = tuple(gradients)
        self.values = tuple(jaxpr.invars[count : len(jaxpr.invars) - split.num_roots])
        self.position = {v: i for i, v in enumerate(jaxpr.invars[:count])}
        self.value_at = {v: i for i, v in enumerate(self.values)}
        self.readers = tuple(tuple(r) for r in readers)
        # What no layer reads has a gradient of zero: the first layer sees to it.
        self.owners = tuple(r[0] if r else 0 for r in self.readers)
        self.order = {e: i for i, e in enumerate(jaxpr.eqns)}
        self.label: dict[Var, int] = dict(zip(gradients, self.owners, strict=True))
        # How often what a variable follows from was joined.
        self.level: dict[Var, int] = {}
        self.maker: dict[Var, Eqn] = {}
        self.joining: list[Eqn] = []
        for eqn in jaxpr.eqns:
            self.maker.update(dict.fromkeys(eqn.outvars, eqn))
            found = {self.label.get(v, _FREE) for v in variables(eqn.invars)} - {_FREE}
            if not found:
                continue
            layers = found - {_SHARED}
            if len(layers) > 1:
                self._check_small(eqn)
            # A sum over all layers is joined one by one: its scalars stay shared.
            is_scalar = all(math.prod(v.aval.shape) == 1 for v in eqn.outvars)
            joins = len(layers) != 1 or (_SHARED in found and is_scalar)
            owner = _SHARED if joins else next(iter(layers))
            self.label.update(dict.fromkeys(eqn.outvars, owner))
            level = max(self._level_for(v, joins=joins) for v in variables(eqn.invars))
            self.level.update(dict.fromkeys(eqn.outvars, level))
            if joins:
                self.joining.append(eqn)
        self.num_phases = max((self.level[e.outvars[0]] for e in self.joining), default=0)
        self.results: dict[int, list[int]] = {}
        for j, v in enumerate(jaxpr.outvars):
            if variables([v]) and self.label.get(v, _FREE) >= 0:
                self.results.setdefault(self.label[v], []).append(j)
        self.overwritten = {j: i for i, j in split.aliases}
        self.sent: dict[int, dict[Var, None]] = {}
        for eqn in self.joining:
            for v in variables(eqn.invars):
                if self.label.get(v, _FREE) >= 0:
                    self.sent.setdefault(self.label[v], {})[v] = None
        self._shares: dict[tuple[int, int], Share] = {}

    def _is_free(self, eqn: Eqn) -> bool:
        return self.label.get(eqn.outvars[0], _FREE) == _FREE

    def _level_for(self, variable: Var, *, joins: bool) -> int:
        is_sent = joins and self.label.get(variable, _FREE) >= 0
        return self.level.get(variable, 0) + is_sent

    def _check_small(self, eqn: Eqn) -> None:
        largest = max(num_bytes(v.aval) for v in eqn.outvars)
        if largest > _SHARED_BYTES:
            raise TraceError(
                f"the update joins gradients of several layers into one tensor of "
                f"{bytes_text(largest)}: {eqn.primitive.name} at {source_line(eqn.source_info)}; "
                "an optimizer that flattens all parameters cannot be cut into stages: let it work "
                "leaf by leaf, or use one stage"
            )

    def share(self, first: int, last: int) -> Share:
        """Return what the layers `first` to `last` do, both included."""
        if (first, last) not in self._shares:
            self._shares[first, last] = self._share(first, last)
        return self._shares[first, last]

    def _share(self, first: int, last: int) -> Share:
        layers = range(first, last + 1)
        jaxpr = self.split.update.jaxpr
        results = sorted(j for k in layers for j in self.results.get(k, ()))
        sends = [v for k in layers for v in self.sent.get(k, ())]
        todo = [*(jaxpr.outvars[j] for j in results), *sends]
        equations: set[Eqn] = set()
        read: dict[Var, None] = {}
        shared: dict[Var, None] = {}
        while todo:
            v = todo.pop()
            eqn = self.maker.get(v)
            if eqn is None:
                read[v] = None
            elif self.label.get(v) == _SHARED:
                shared[v] = None
            elif eqn not in equations:
                equations.add(eqn)
                todo += variables(eqn.invars)
        owned = frozenset(r for r, k in enumerate(self.owners) if k in layers)
        return Share(
            owned=owned,
            tied=frozenset(r for r in owned if any(k not in layers for k in self.readers[r])),
            equations=tuple(sorted(equations, key=self.order.__getitem__)),
            arguments=tuple(sorted(self.position[v] for v in read if v in self.position)),
            values=tuple(sorted(self.value_at[v] for v in read if v in self.value_at)),
            results=tuple(results),
            state=tuple(self.overwritten[j] for j in results if j in self.overwritten),
            shared=tuple(sorted(shared, key=lambda v: self.order[self.maker[v]])),
            sends=tuple(
                tuple(v for v in sends if self.level.get(v, 0) == phase)
                for phase in range(self.num_phases)
            ),
        )

    def join(
        self,
        phase: int,
        arguments: Sequence[Array],
        values: Sequence[Array],
        sent: Mapping[Var, Array],
    ) -> dict[Var, Array]:
        """Return what a phase joins, by variable.

        Args:
            phase: Number of the phase.
            arguments: All arguments of the step; those that this does not follow from may be None.
            values: The value and the auxiliary results of the loss; likewise.
            sent: What the layers sent in this phase and before, by variable.
        """
        known = self._known(arguments, values)
        known.update(sent)
        made = self.joined_in(phase)
        run(self.behind(made), known)
        return {v: known[v] for v in made}

    def joined_in(self, phase: int) -> list[Var]:
        """Variables that a phase joins."""
        ready = (e for e in self.joining if self.level[e.outvars[0]] == phase + 1)
        return [v for e in ready for v in e.outvars]

    def behind(self, wanted: Iterable[Var]) -> list[Eqn]:
        """Equations, in order, that joined values and what no gradient leads to follow from."""
        free = (_FREE, _SHARED)
        equations = self.split.update.jaxpr.eqns
        return needed([e for e in equations if self.label.get(e.outvars[0], _FREE) in free], wanted)

    def common_results(self) -> dict[int, Var]:
        """Results of the step that no layer owns, by position."""
        return {
            j: v
            for j, v in enumerate(self.split.update.jaxpr.outvars)
            if not variables([v]) or self.label.get(v, _FREE) < 0
        }

    def common(
        self,
        arguments: Sequence[Array],
        values: Sequence[Array],
        shared: Mapping[Var, Array],
    ) -> dict[int, Array]:
        """Results of the step that no layer owns, by position.

        Args:
            arguments: All arguments of the step; those that these do not follow from may be None.
            values: The value and the auxiliary results of the loss; likewise.
            shared: What all phases joined, by variable.
        """
        known = self._known(arguments, values)
        known.update(shared)
        wanted = self.common_results()
        free = [e for e in self.behind(variables(wanted.values())) if self._is_free(e)]
        run(needed(free, variables(wanted.values())), known)
        return {j: read(known, v) for j, v in wanted.items()}

    def _known(self, arguments: Sequence[Array], values: Sequence[Array]) -> dict[Var, Array]:
        closed = self.split.update
        known: dict[Var, Array] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
        known.update((v, arguments[i]) for v, i in self.position.items())
        known.update(zip(self.values, values, strict=True))
        return known

    def run(
        self,
        share: Share,
        arguments: Sequence[Array],
        gradients: Mapping[int, Array],
        values: Sequence[Array],
        shared: Sequence[Array],
    ) -> tuple[list[Array], list[Array]]:
        """Run a share.

        Args:
            share: What a piece does.
            arguments: All arguments of the step; those that it does not read may be None.
            gradients: By number of the parameter.
            values: The value and the auxiliary results of the loss; those that it does not read
                may be None.
            shared: Values of `share.shared`.

        Returns:
            Results of the step, and what is sent to be joined.
        """
        known = self._known(arguments, values)
        known.update((self.gradients[r], g) for r, g in gradients.items())
        known.update(zip(share.shared, shared, strict=True))
        run(share.equations, known)
        outs = self.split.update.jaxpr.outvars
        return [read(known, outs[j]) for j in share.results], [
            known[v] for phase in share.sends for v in phase
        ]
