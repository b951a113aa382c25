"""What is taken from JAX beyond its stable public API."""

from __future__ import annotations

import jax

from meshwise.jax_compat import source_line


def step(x: float) -> jax.Array:
    def inner(y: float) -> jax.Array:
        return jax.numpy.sin(y)

    return inner(x)


def test_source_lines_name_file_and_function_but_no_folder() -> None:
    (eqn,) = jax.make_jaxpr(step)(1.0).eqns
    line = source_line(eqn.source_info)
    assert line.startswith("test_jax_compat.py:12:")
    assert line.endswith(" (step.inner)")


def test_without_a_source_there_is_no_line() -> None:
    assert source_line(None) == ""
