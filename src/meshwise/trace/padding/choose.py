"""Which classes of dims are worth a try, and the step with them padded.

A class is tried if the devices do not divide its size, if dense work runs over it, and if the
padding is small.  It is padded to a multiple of the number of devices: that is what any product
of mesh axes divides, on every view of the mesh.  Larger multiples, such as the 128 of a tensor
core's tile, would cost work on all devices, and no price here knows what they would save.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax

from meshwise.errors import PlanError
from meshwise.graph.buckets import with_buckets
from meshwise.plan.padding import PaddedDim
from meshwise.trace.flatten import flatten
from meshwise.trace.padding.classes import DimClass, dim_classes, padded_loops
from meshwise.trace.padding.emit import PaddingEmitter, run_padded
from meshwise.trace.padding.region import padded_region
from meshwise.trace.padding.scopes import Scope, nest, scopes_of
from meshwise.trace.sink import with_constants_inside
from meshwise.trace.step import TracedStep
from meshwise.trace.to_graph import RuleCache, to_graph

# More than this share of new elements can hardly be won back: it is what one of four devices has.
MAX_WASTE = 0.25
# Of the dense FLOP of a step; less does not change its time.
MIN_FLOP_SHARE = 0.01
# Arguments that a plan names for each class.
_MAX_NAMES = 4


def padded_size(size: int, num_devices: int) -> int:
    """Return the next multiple of the number of devices."""
    return -(-size // num_devices) * num_devices


def _is_candidate(size: int, num_devices: int) -> bool:
    added = padded_size(size, num_devices) - size
    return 0 < added <= MAX_WASTE * size


def padded_dims(step: TracedStep, num_devices: int) -> tuple[PaddedDim, ...]:
    """Return the classes of dims of a step that are worth a try.

    Args:
        step: The step, with its loop over micro-batches.
        num_devices: The number of devices of the mesh.
    """
    root, rules = nest(step.program), RuleCache()
    if not _has_candidate(root, rules, num_devices):
        return ()
    found: list[PaddedDim] = []
    for dim_class in dim_classes(root, rules):
        if not _is_candidate(dim_class.size, num_devices):
            continue
        inside, everything = _dense_flop(root, rules, dim_class)
        if inside and inside >= MIN_FLOP_SHARE * everything:
            found.append(
                PaddedDim(
                    number=dim_class.number,
                    size=dim_class.size,
                    padded_size=padded_size(dim_class.size, num_devices),
                    where=_where(step, dim_class),
                )
            )
    return tuple(found)


def _has_candidate(root: Scope, rules: RuleCache, num_devices: int) -> bool:
    """Return whether any dense operator has a loop of a size that may be padded."""
    return any(
        _is_candidate(loop.size, num_devices)
        for scope in scopes_of(root)
        for node in scope.program.nodes
        if not node.bodies and rules.lookup(node.equation)[0].heavy
        for loop in rules.lookup(node.equation)[1].loops
    )


def _dense_flop(root: Scope, rules: RuleCache, dim_class: DimClass) -> tuple[float, float]:
    """FLOP of the dense operators that run over a class, and of all of them."""
    inside = everything = 0.0
    for scope in scopes_of(root):
        for node in scope.program.nodes:
            if node.bodies:
                continue
            row, rule, flop, _ = rules.lookup(node.equation)
            if row.heavy:
                everything += scope.times * flop
                if padded_loops(scope, node, rule, dim_class):
                    inside += scope.times * flop
    return inside, everything


def _where(step: TracedStep, dim_class: DimClass) -> tuple[str, ...]:
    """Names of arguments with dims of the class, the first ones."""
    names = [
        f"{step.graph.tensors[ident].name} dim {dim}"
        for ident in step.program.inputs
        for dim in dim_class.dims.get((0, ident), ())
    ]
    return tuple(names[:_MAX_NAMES])


def with_padding(step: TracedStep, dims: Sequence[PaddedDim]) -> TracedStep:
    """Return the step with classes of dims padded inside; arguments and results keep their shapes.

    Args:
        step: The step, with its loop over micro-batches.
        dims: What `padded_dims` found for it, or a plan says.

    Raises:
        PlanError: the step has no such dims.
    """
    if not dims:
        return step
    root, rules = nest(step.program), RuleCache()
    classes = dim_classes(root, rules)
    for dim in dims:
        if dim.number >= len(classes) or classes[dim.number].size != dim.size:
            raise PlanError(
                f"the plan pads dims of size {dim.size} to {dim.padded_size}, which this step "
                "does not have; plan again"
            )
    padding = PaddingEmitter(
        regions=tuple(padded_region(root, classes[dim.number], rules) for dim in dims),
        sizes=tuple(dim.padded_size for dim in dims),
        rules=rules,
    )
    closed = jax.make_jaxpr(lambda *leaves: run_padded(root, padding, leaves))(*step.in_avals)
    program = with_constants_inside(flatten(closed))
    names = {
        new: step.graph.tensors[old].name
        for new, old in zip(program.inputs, step.program.inputs, strict=True)
    }
    graph = with_buckets(to_graph(program, names=names, aliases=step.graph.aliases))
    return replace(step, program=program, graph=graph)
