"""Padding that nobody chose: any equations and ports of scans, garbage beyond the end."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from meshwise.trace.padding.classes import DimClass, dim_classes, padded_loops
from meshwise.trace.padding.emit import PaddingEmitter, run_padded
from meshwise.trace.padding.region import PaddedRegion, Place
from meshwise.trace.padding.scopes import Scope, nest, ports_of, scopes_of
from meshwise.trace.padding.values import PaddedValue
from meshwise.trace.program import Program
from meshwise.trace.to_graph import RuleCache


def possible_places(root: Scope, dim_class: DimClass, rules: RuleCache) -> list[Place]:
    """Every equation and port that may run padded with a class."""
    found: list[Place] = []
    for scope in scopes_of(root):
        for position, node in enumerate(scope.program.nodes):
            if position in scope.bodies:
                for number, port in enumerate(ports_of(node)):
                    outer = [i for i in (port.entry, port.exit) if i >= 0]
                    if not (port.shift and any(0 in dim_class.of(scope, i) for i in outer)):
                        found.append((scope.number, position, number))
            elif not node.bodies:
                rule = rules.lookup(node.equation)[1]
                if padded_loops(scope, node, rule, dim_class):
                    found.append((scope.number, position, -1))
    return found


def forced_padding(
    program: Program, choose: Callable[[Sequence[Place]], Sequence[Place]], by: int
) -> tuple[Scope, PaddingEmitter]:
    """Padding of all classes that some equation can run with.

    Args:
        program: The program.
        choose: Which of the possible places are padded.
        by: New elements.
    """
    root, rules = nest(program), RuleCache()
    found = [(c, possible_places(root, c, rules)) for c in dim_classes(root, rules)]
    found = [(c, places) for c, places in found if any(port < 0 for _, _, port in places)]
    regions = tuple(PaddedRegion(c, frozenset(choose(places))) for c, places in found)
    sizes = tuple(region.dim_class.size + by for region in regions)
    return root, PaddingEmitter(regions=regions, sizes=sizes, rules=rules)


def everywhere(places: Sequence[Place]) -> Sequence[Place]:
    """All places."""
    return places


def anywhere(rng: random.Random) -> Callable[[Sequence[Place]], Sequence[Place]]:
    """Each place with a chance that is drawn for the class."""

    def choose(places: Sequence[Place]) -> Sequence[Place]:
        chance = rng.choice((0.3, 0.7, 0.95))
        return [place for place in places if rng.random() < chance]

    return choose


def filled_with_garbage(value: PaddedValue, sizes: dict[int, int]) -> PaddedValue:
    """In place of `padded_to`: NaN, large integers or True beyond the end, and nothing known."""
    array = jnp.asarray(value.array)
    config = [(0, sizes.get(dim, size) - size, 0) for dim, size in enumerate(array.shape)]
    if jnp.issubdtype(array.dtype, jnp.inexact):
        garbage: Any = jnp.nan
    elif array.dtype == jnp.bool_:
        garbage = True
    else:
        garbage = 99
    return PaddedValue(lax.pad(array, jnp.asarray(garbage, array.dtype), config))


def run(root: Scope, padding: PaddingEmitter, args: Sequence[Any]) -> list[Any]:
    """Results of a padded program."""
    return jax.jit(lambda *leaves: run_padded(root, padding, leaves))(*args)
