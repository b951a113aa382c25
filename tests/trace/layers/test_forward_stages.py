"""A step without gradients in stages means what it means whole."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.trace.layers.equations import inlined, run_inlined
from meshwise.trace.layers.forward_stages import ForwardStages, forward_stages


def step(a: Any, b: Any, c: Any, d: Any, rows: Any) -> Any:
    mask = rows > 0.5
    first = jnp.tanh(rows @ a) * mask
    skip = first + 1.0
    second = jax.jit(lambda x, w: jnp.sin(x @ w))(first, b)
    third = second @ c + skip * jnp.sum(d)
    return third, jnp.sum(mask), a, 3, d * 2.0, second, third


ARGUMENTS = [jnp.asarray(np.random.default_rng(n).normal(size=(4, 4))) for n in range(5)]
CLOSED = inlined(jax.make_jaxpr(step)(*ARGUMENTS))


def run(cut: ForwardStages) -> list[Any]:
    there: dict[Any, Any] = {("argument", n): x for n, x in enumerate(ARGUMENTS)}
    for part in cut.stages:
        made = run_inlined(part.closed, [there[source] for source in part.inputs])
        there.update({("value", n): x for n, x in zip(part.outputs, made, strict=True)})
    return [there[source] for source in cut.results]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(0, 3)), min_size=4, max_size=4).filter(any))
def test_stages_mean_the_step_wherever_arguments_live(homes: list[int | None]) -> None:
    cut = forward_stages(CLOSED, [*homes, None])
    for found, expected in zip(run(cut), step(*ARGUMENTS), strict=True):
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


def test_values_pass_a_stage_by_and_arguments_elsewhere_are_told() -> None:
    cut = forward_stages(CLOSED, [0, 1, 2, 0, None], {4})
    skipping, into = cut.stages[0], cut.stages[2]
    assert {s.number for s in into.inputs if s.kind == "value"} & set(skipping.outputs)
    assert cut.sent == ()
    # All that follows from what lives on the last stage is there.
    late = forward_stages(CLOSED, [2, 0, 1, 0, None], {4})
    assert late.sent == ((1, 2), (2, 2), (3, 2))
