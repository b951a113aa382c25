"""Every ruled primitive with its dims padded by garbage equals the primitive."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshwise.trace.evaluate import run_program
from meshwise.trace.flatten import flatten
from meshwise.trace.padding import emit
from oracle.forced_padding import everywhere, filled_with_garbage, forced_padding, run
from oracle.problem import raw
from rule_cases.case import Case
from rule_cases.table import CASES

# One or more of each kind of local form, and of each way to keep garbage out of a reduction.
_SAMPLE = (
    "broadcast_in_dim: new and stretched dims",
    "concatenate: two",
    "dot_general: batched",
    "gather: fill value",
    "gather: lookup, clip",
    "gather: lookup, fill",
    "gather: two columns",
    "iota: first dim",
    "random_bits: batched keys",
    "random_bits: uint32",
    "reduce_and: first dim",
    "reduce_max: two dims",
    "reshape: regroup",
    "scatter-add: rows, drop",
    "sort: two operands",
    "tile: in front of a dim",
)


def _check(case: Case) -> None:
    with jax.enable_x64(case.x64):
        program = flatten(jax.make_jaxpr(case.fun)(*case.operands))
        root, padding = forced_padding(program, everywhere, 3)
        want = jax.jit(lambda *args: run_program(program, args))(*case.operands)
        got = run(root, padding, case.operands)
        for a, b in zip(map(raw, want), map(raw, got), strict=True):
            assert a.dtype == b.dtype
            if a.dtype == jnp.bfloat16:  # NumPy cannot tell its NaN
                a, b = a.astype(np.float32), b.astype(np.float32)
            if case.rtol:
                np.testing.assert_allclose(b, a, rtol=case.rtol, atol=case.rtol)
            else:
                np.testing.assert_array_equal(b, a)


@pytest.fixture(autouse=True)
def garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emit, "padded_to", filled_with_garbage)


@pytest.mark.parametrize("case", [c for c in CASES if str(c) in _SAMPLE], ids=str)
def test_padded_equals_the_primitive(case: Case, quick_compile: None) -> None:
    _check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in CASES if str(c) not in _SAMPLE], ids=str)
def test_padded_equals_the_primitive_everywhere(case: Case, quick_compile: None) -> None:
    _check(case)


def test_the_sample_exists() -> None:
    assert set(_SAMPLE) <= {str(case) for case in CASES}
