"""Runs of the forward chain as functions of their own: layers, and stages made of several.

A piece takes arguments of the step, parameters, and the activations that enter; it returns the
activations that leave.  Composing consecutive pieces is cutting a longer one.

Source: docs/decisions/0020.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jax import Array

from meshwise.jax_compat.jaxprs import Eqn, Var
from meshwise.trace.layers.chain import Chain
from meshwise.trace.layers.equations import environment, needed, run, variables
from meshwise.trace.layers.gradient_path import on_gradient_path
from meshwise.trace.layers.split import SplitStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A run of links.

    Attributes:
        first: Its first link.
        last: Its last link.
        preparation: Equations that make parameters of arguments (a cast before the loss).
        equations: All others, in order: support and links.
        arguments: Positions of the step's arguments that it reads, parameters excepted.
        roots: Numbers of the parameters that it reads.
        entering: Variables made in earlier pieces, in the order they are made.
        leaving: Variables that later pieces or the results of the loss read.
    """

    first: int
    last: int
    preparation: tuple[Eqn, ...]
    equations: tuple[Eqn, ...]
    arguments: tuple[int, ...]
    roots: tuple[int, ...]
    entering: tuple[Var, ...]
    leaving: tuple[Var, ...]


class Cutter:
    """Cuts one forward pass; remembers who reads what."""

    def __init__(self, split: SplitStep, chain: Chain) -> None:
        self.split = split
        self.chain = chain
        jaxpr = split.forward.jaxpr
        self.position = {v: i for i, v in enumerate(jaxpr.invars)}
        self.root_of = {v: k for k, v in enumerate(split.roots)}
        self.order = {e: i for i, e in enumerate(jaxpr.eqns)}
        self.makers = {v: e for e in chain.support for v in e.outvars}
        self.last_reader: dict[Var, int] = {}
        for k, reads in enumerate(chain.reads):
            for _, v in reads:
                self.last_reader[v] = k
        self.last_link = dict(self.last_reader)
        end = len(chain.links)
        results = jaxpr.outvars[: 1 + split.num_aux]
        for v in variables(results):
            self.last_reader[v] = end
        self.on_path = on_gradient_path(jaxpr.eqns, split.roots, jaxpr.outvars[:1])
        self.known: dict[tuple[int, int], Piece] = {}

    def is_read_after(self, variable: Var, last: int) -> bool:
        """Return whether a link after `last` reads a variable of the chain."""
        return self.last_link.get(variable, -1) > last

    def has_cotangent(self, variable: Var) -> bool:
        """Return whether a gradient flows through a variable of the chain; others go forward."""
        return variable in self.on_path

    def arguments_of_roots(self, piece: Piece) -> set[int]:
        """Positions of the arguments that a piece makes its parameters of."""
        read = [v for e in piece.preparation for v in variables(e.invars)]
        read += [self.split.roots[r] for r in piece.roots]
        return {self.position[v] for v in read if v in self.position}

    def piece(self, first: int, last: int) -> Piece:
        """Return the links `first` to `last`, both included."""
        if (first, last) not in self.known:
            self.known[first, last] = self._cut(first, last)
        return self.known[first, last]

    def _cut(self, first: int, last: int) -> Piece:
        chain = self.chain
        links = chain.links[first : last + 1]
        entering = {v: m for k in range(first, last + 1) for m, v in chain.reads[k] if m < first}
        support = self._support(links)
        made = {v for e in (*links, *support) for v in e.outvars}
        read = [v for e in (*support, *links) for v in variables(e.invars)]
        roots = sorted({self.root_of[v] for v in read if v in self.root_of})
        prepared = [self.split.roots[r] for r in roots if self.split.roots[r] in self.makers]
        preparation = needed(self.split.forward.jaxpr.eqns, prepared) if prepared else []
        arguments = {
            self.position[v]
            for v in (*read, *(v for e in preparation for v in variables(e.invars)))
            if v in self.position and v not in self.root_of and v not in made
        }
        leaving = [v for e in links for v in e.outvars if self.last_reader.get(v, -1) > last]
        return Piece(
            first=first,
            last=last,
            preparation=tuple(preparation),
            equations=tuple(sorted((*support, *links), key=self.order.__getitem__)),
            arguments=tuple(sorted(arguments)),
            roots=tuple(roots),
            entering=tuple(
                v
                for m in sorted(set(entering.values()))
                for v in chain.links[m].outvars
                if v in entering
            ),
            leaving=tuple(leaving),
        )

    def _support(self, links: Sequence[Eqn]) -> list[Eqn]:
        """Support equations that links need, those that make parameters excepted."""
        found: dict[Eqn, None] = {}
        todo = [v for e in links for v in variables(e.invars)]
        while todo:
            v = todo.pop()
            eqn = self.makers.get(v)
            if eqn is None or v in self.root_of or eqn in found:
                continue
            found[eqn] = None
            todo += variables(eqn.invars)
        return list(found)

    def prepare(self, piece: Piece, arguments: Sequence[Array]) -> list[Array]:
        """Values of the parameters of a piece.

        Args:
            piece: The piece.
            arguments: All arguments of the step; those that it does not read may be None.
        """
        known = environment(self.split.forward, arguments)
        run(piece.preparation, known)
        return [known[self.split.roots[r]] for r in piece.roots]

    def forward(
        self,
        piece: Piece,
        arguments: Sequence[Array],
        roots: Sequence[Array],
        entering: Sequence[Array],
    ) -> list[Array]:
        """Return the activations that leave a piece."""
        known = environment(self.split.forward, arguments)
        known.update((self.split.roots[r], x) for r, x in zip(piece.roots, roots, strict=True))
        known.update(zip(piece.entering, entering, strict=True))
        run(piece.equations, known)
        return [known[v] for v in piece.leaving]
