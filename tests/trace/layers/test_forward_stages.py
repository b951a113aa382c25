"""A step without gradients in stages means what it means whole."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.trace.layers.equations import dependent, inlined, run_inlined
from meshwise.trace.layers.forward.stages import ForwardStages, forward_stages


def step(a: Any, b: Any, c: Any, d: Any, rows: Any) -> Any:
    mask = rows > 0.5
    first = jnp.tanh(rows @ a) * mask
    skip = first + 1.0
    second = jax.jit(lambda x, w: jnp.sin(x @ w))(first, b)
    third = second @ c + skip * jnp.sum(d)
    return third, jnp.sum(mask), a, 3, d * 2.0, second, third


ARGUMENTS = [jnp.asarray(np.random.default_rng(n).normal(size=(4, 4))) for n in range(5)]
CLOSED = inlined(jax.make_jaxpr(step)(*ARGUMENTS))
EXPECTED = step(*ARGUMENTS)


def run(cut: ForwardStages) -> list[Any]:
    there: dict[Any, Any] = {("argument", n): x for n, x in enumerate(ARGUMENTS)}
    for part in cut.stages:
        made = run_inlined(part.closed, [there[source] for source in part.inputs])
        there.update({("value", n): x for n, x in zip(part.outputs, made, strict=True)})
    return [there[source] for source in cut.results]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.integers(0, 3)), min_size=4, max_size=4).filter(any),
    st.sampled_from([(), (4,), (0, 4)]),
)
def test_stages_mean_the_step_wherever_arguments_live(
    homes: list[int | None], rows: tuple[int, ...]
) -> None:
    cut = forward_stages(CLOSED, [*homes, None], rows)
    for found, expected in zip(run(cut), EXPECTED, strict=True):
        np.testing.assert_array_equal(found, expected)
    # Values go forward, from the stage that makes them.
    numbers = [part.stage for part in cut.stages]
    assert numbers == sorted(set(numbers))
    made: set[int] = set()
    for part in cut.stages:
        assert {s.number for s in part.inputs if s.kind == "value"} <= made
        made |= set(part.outputs)
        # Nobody sends what nobody has.
        later = [s for p in cut.stages if p.stage > part.stage for s in p.inputs]
        assert all(("value", n) in {*later, *cut.results} for n in part.outputs)


def crossing(cut: ForwardStages) -> int:
    """Bytes of the values that stages take."""
    pairs = [
        (source, aval)
        for part in cut.stages
        for source, aval in zip(part.inputs, part.closed.in_avals, strict=True)
    ]
    return sum(a.size * a.dtype.itemsize for s, a in pairs if s.kind == "value")


def normed(w: Any, scale: Any, last: Any, x: Any) -> Any:
    x = jnp.tanh(x @ w)
    mean = jnp.mean(x, axis=1, keepdims=True)
    y = (x - mean) * jax.lax.rsqrt(jnp.mean((x - mean) ** 2, axis=1, keepdims=True) + 1e-5)
    y = x + jnp.sin(y * scale)
    small = jnp.max(y, axis=1)
    return jnp.cos(small) @ last


def test_what_reads_no_parameter_runs_where_the_fewest_bytes_cross() -> None:
    shapes = [(8, 8), (8,), (4,), (4, 8)]
    avals = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    closed = inlined(jax.make_jaxpr(normed)(*avals))
    cut = forward_stages(closed, [0, 1, 2, None], {3})
    # What is normed and passed by crosses once; then the maximum alone, not what it is taken of.
    assert [len(part.inputs) for part in cut.stages] == [2, 2, 2]
    assert crossing(cut) == (4 * 8 + 4) * 4
    # Without knowing the batch everything runs as early as it can.
    assert crossing(forward_stages(closed, [0, 1, 2, None])) > crossing(cut)


def test_cuts_are_those_of_brute_force() -> None:
    def step(w: Any, v: Any, x: Any) -> Any:
        a = x @ w
        b, c = a[:, :3], jnp.concatenate([a, a], axis=1)
        d = jnp.sum(c, axis=1) + b[:, 0]
        return (b.T @ jnp.outer(d, d)) @ v + jnp.max(c), jnp.sin(b)

    avals = [jax.ShapeDtypeStruct(s, np.float32) for s in ((6, 6), (5,), (5, 6))]
    closed = inlined(jax.make_jaxpr(step)(*avals))
    equations = closed.jaxpr.eqns
    fixed = {i for i, e in enumerate(equations) if {*closed.jaxpr.invars[:2]} & {*e.invars}}
    rest = [i for i in range(len(equations)) if i not in fixed]
    v = closed.jaxpr.invars[1]
    reads_v = {i for i in fixed if v in equations[i].invars}
    after = dependent(equations, [o for i in reads_v for o in equations[i].outvars])
    best = min(
        cost
        for chosen in itertools.product((0, 1), repeat=len(rest))
        if (cost := _cost(equations, dict(zip(rest, chosen, strict=True)), reads_v, after))
    )
    assert crossing(forward_stages(closed, [0, 1, None], {2})) == best


def _cost(equations: Any, chosen: dict[int, int], reads_v: set[int], after: set[Any]) -> float:
    """Bytes that cross if equations run so; infinite where a value would go back."""
    place = {i: chosen.get(i, int(i in reads_v)) for i in range(len(equations))}
    made = {v: place[i] for i, e in enumerate(equations) for v in e.outvars}
    sent: set[Any] = set()
    for i, eqn in enumerate(equations):
        for v in eqn.invars:
            if isinstance(v, type(eqn.outvars[0])) and v in made:
                if made[v] > place[i]:
                    return float("inf")
                if made[v] < place[i]:
                    sent.add(v)
    late = any(v in after and place[i] == 0 for i, e in enumerate(equations) for v in e.outvars)
    return float("inf") if late else sum(v.aval.size * v.aval.dtype.itemsize for v in sent)


def test_values_pass_a_stage_by_and_arguments_elsewhere_are_told() -> None:
    cut = forward_stages(CLOSED, [0, 1, 2, 0, None], {4})
    skipping, into = cut.stages[0], cut.stages[2]
    assert {s.number for s in into.inputs if s.kind == "value"} & set(skipping.outputs)
    assert cut.sent == ()
    # All that follows from what lives on the last stage is there.
    late = forward_stages(CLOSED, [2, 0, 1, 0, None], {4})
    assert late.sent == ((1, 2), (2, 2), (3, 2))
