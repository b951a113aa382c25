"""`pallas_call`: a kernel that runs on each block of a grid, planned by the loops of the grid."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import string
from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp

from meshwise.graph.layout import SUM
from meshwise.graph.loops import PARALLEL, LoopRule, replicated_rule
from meshwise.jax_compat.jaxprs import Eqn, FlatJaxpr, bodies
from meshwise.jax_compat.pallas import kernel_blocks, with_kernel_shapes
from meshwise.rules.loop_list import LoopList
from meshwise.rules.pallas.grid import GridLoop, followed_loops, grid_loops
from meshwise.rules.primitive import Equation, PrimitiveRule, Shards, rebind, result_elements
from meshwise.rules.products.dot_general import TABLE as PRODUCTS

# Digits of a fingerprint that tell kernels apart.
_DIGITS = 16
_ADDRESS = re.compile(r"0x[0-9a-f]+")


def pallas_rule(eqn: Equation) -> LoopRule:
    """Return the loops of the grid that may be split; those of a group are two.

    Args:
        eqn: The equation.
    """
    mapping = eqn.params["grid_mapping"]
    found, reasons = grid_loops(eqn.params)
    ranks = [len(aval.shape) for aval in eqn.in_avals], [len(aval.shape) for aval in eqn.out_avals]
    if not found:
        return replace(replicated_rule(*ranks), whole="; ".join([*reasons, _statement(eqn)]))
    first = mapping.num_index_operands
    dims: list[list[tuple[int, ...]]] = [[()] * rank for rank in (*ranks[0][first:], *ranks[1])]
    loops = LoopList()
    for loop in found:
        kind = SUM if loop.is_shared else PARALLEL
        # A micro-batch takes blocks at equal distances, in their order.  That fails where blocks
        # form groups, and where all blocks share a result: a micro-batch has none of its own.
        block = loop.group > 1 or loop.is_shared
        outer, inner = (loops.add(size, kind, block=block) for size in _sizes(loop))
        for of_block, dim in zip(dims, loop.dims, strict=True):
            if dim is not None:
                at, in_groups = dim
                of_block[at] = outer if in_groups else (*outer, *inner)
    num = mapping.num_inputs
    of_scalars = [((),) * rank for rank in ranks[0][:first]]
    return LoopRule(
        loops=loops.done(),
        operands=(*of_scalars, *(tuple(x) for x in dims[:num])),
        results=tuple(tuple(x) for x in dims[num:]),
        whole=f"{eqn.params['name']}: {'; '.join(reasons)}" if reasons else "",
    )


def _statement(eqn: Equation) -> str:
    """Return what to write where no loop is found, as far as block maps say it."""
    fresh, mapping = itertools.count(1), eqn.params["grid_mapping"]
    scalars = eqn.in_avals[: mapping.num_index_operands]
    terms = [[(-next(fresh), 0) for _ in aval.shape] for aval in scalars]
    for block, dims in zip(kernel_blocks(mapping), followed_loops(eqn.params), strict=True):
        pairs = zip(dims, block.shape, strict=True)
        terms.append([(-next(fresh), 0) if loop is None else (loop, n) for loop, n in pairs])
    every = dict.fromkeys(key for term in terms for key in term)
    if len(every) > len(string.ascii_letters):
        return "no loop of its grid is known to split; state its loops by mw.sharded_kernel"
    letters = dict(zip(every, string.ascii_letters, strict=False))
    texts = ["".join(letters[key] for key in term) for term in terms]
    num = len(eqn.in_avals)
    loops = f"{','.join(texts[:num])}->{','.join(texts[num:])}"
    whole = "".join(letters.values())
    return (
        "no loop of its grid is known to split; call it in a function under "
        f'mw.sharded_kernel(loops="{loops}", whole="{whole}"), and take out of '
        "whole= the letters of dims that may be split"
    )


def _sizes(loop: GridLoop) -> tuple[int, int]:
    """Return the sizes of the loops of one loop of the grid: groups, and the turns of one."""
    return loop.size // loop.group, loop.group if loop.splits_groups else 1


def local_pallas(eqn: Equation, shards: Shards, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Run the kernel on the part of the grid whose blocks are here.

    Args:
        eqn: The equation.
        shards: How its loops are split.
        operands: The local operands.
    """
    mapping = eqn.params["grid_mapping"]
    grid, numbers = list(mapping.grid), iter(range(len(shards.rule.loops)))
    # For each result whether this device has the last turn of all loops that it does not follow.
    is_last: list[jax.Array | None] = [None] * len(eqn.out_avals)
    for loop in grid_loops(eqn.params)[0]:
        for own in itertools.islice(numbers, sum(size > 1 for size in _sizes(loop))):
            parts = shards.parts(own)
            grid[loop.axis] //= parts
            if not loop.is_shared or parts == 1:
                continue
            here = shards.global_index(own)[-1] == shards.rule.loops[own].size - 1
            for i, dim in enumerate(loop.dims[mapping.num_inputs :]):
                if dim is None:
                    before = is_last[i]
                    is_last[i] = here if before is None else before & here
    shapes = [jnp.shape(x) for x in operands[mapping.num_index_operands :]]
    shapes += [shards.result_shape(eqn, i) for i in range(len(eqn.out_avals))]
    results = rebind(eqn, operands, **with_kernel_shapes(eqn.params, grid, shapes))
    return [
        x if last is None else jnp.where(last, x, jnp.zeros_like(x))
        for x, last in zip(results, is_last, strict=True)
    ]


def pallas_flop(eqn: Equation) -> float:
    """Return the FLOP that the kernel states, else those of its products in all blocks.

    Args:
        eqn: The equation.
    """
    cost, mapping = eqn.params["cost_estimate"], eqn.params["grid_mapping"]
    if cost is not None:
        return float(cost.flops)
    sizes = [size if isinstance(size, int) else 1 for size in mapping.grid]
    return math.prod(sizes) * _products(eqn.params["jaxpr"]) or result_elements(eqn)


def _products(body: FlatJaxpr) -> float:
    """Return the FLOP of the products of a body; the longest branch counts, and one turn."""
    return sum(map(_products_of, body.eqns))


def _products_of(eqn: Eqn) -> float:
    name, params = eqn.primitive.name, eqn.params
    if name == "dot_general":
        avals = tuple(v.aval for v in eqn.invars)
        results = tuple(v.aval for v in eqn.outvars)
        return PRODUCTS[name].flop(Equation(eqn.primitive, params, avals, results, (None, None)))
    inner = [_products(body) for body in bodies(params)]
    if not inner:
        return 0.0
    return params["length"] * inner[0] if name == "scan" else max(inner)


def pallas_detail(eqn: Equation) -> str:
    """Return the name of a kernel and a fingerprint of what it does.

    Args:
        eqn: The equation.
    """
    params, mapping = eqn.params, eqn.params["grid_mapping"]
    said = [mapping.grid, mapping.vmapped_dims, mapping.block_mappings, params["jaxpr"]]
    said += [block.map for block in kernel_blocks(mapping)]
    said += [params[key] for key in ("input_output_aliases", "compiler_params", "interpret")]
    text = _ADDRESS.sub("", "\n".join(map(str, said)))
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
    return f"{params['name'] or 'kernel'}:{digest}"


TABLE = {
    "pallas_call": PrimitiveRule(
        pallas_rule, local_pallas, pallas_flop, heavy=True, detail=pallas_detail
    )
}
