"""Every ruled primitive under every strategy equals the unsharded primitive."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import pytest

from meshwise.graph.loops import enumerate_strategies
from meshwise.rules.elementwise import NEWER
from meshwise.rules.table import RULES
from oracle.every_micro_batch import check_in_time
from oracle.every_strategy import MESHES, check_run, runs_of, sampled
from oracle.on_devices import check_on_devices
from rule_cases.case import Case
from rule_cases.table import CASES, ON_DEVICES

# Beyond this many strategies on one mesh they are evenly sampled; no case has as many today.
_LIMIT = 400
_CHEAP = [case for case in CASES if not case.costly]
_COSTLY = [case for case in CASES if case.costly]


def _check(case: Case, meshes: Sequence[tuple[int, ...]]) -> None:
    with jax.enable_x64(case.x64):
        runs = runs_of(case.fun, case.operands, case.primitive)
        assert runs, "the function does not trace to the primitive"
        for run in runs:
            for sizes in meshes:
                assert check_run(run, sizes, limit=_LIMIT, rtol=case.rtol) >= 1


@pytest.mark.parametrize("case", _CHEAP, ids=str)
def test_strategies_equal_the_primitive(case: Case) -> None:
    _check(case, MESHES)


@pytest.mark.parametrize("case", _COSTLY, ids=str)
def test_strategies_of_costly_primitives_on_one_axis(case: Case) -> None:
    _check(case, MESHES[:1])


@pytest.mark.slow
@pytest.mark.parametrize("case", _COSTLY, ids=str)
def test_strategies_of_costly_primitives(case: Case) -> None:
    _check(case, MESHES[1:])


def test_every_ruled_primitive_has_a_case() -> None:
    assert set(RULES) - set(NEWER) == {case.primitive for case in (*CASES, *ON_DEVICES)}


def test_case_names_are_unique() -> None:
    assert len({str(case) for case in CASES}) == len(CASES)


@pytest.mark.slow
@pytest.mark.parametrize("case", _COSTLY, ids=str)
def test_micro_batches_of_costly_primitives(case: Case) -> None:
    test_micro_batches_equal_the_primitive(case)


@pytest.mark.parametrize("case", _CHEAP, ids=str)
def test_micro_batches_equal_the_primitive(case: Case) -> None:
    with jax.enable_x64(case.x64):
        for run in runs_of(case.fun, case.operands, case.primitive):
            check_in_time(run, rtol=case.rtol)


@pytest.mark.parametrize("case", ON_DEVICES, ids=str)
def test_strategies_on_devices(case: Case) -> None:
    for run in runs_of(case.fun, case.operands, case.primitive):
        for sizes in MESHES:
            for strategy in sampled(list(enumerate_strategies(run.rule, sizes)), 4):
                check_on_devices(run, strategy, sizes, rtol=case.rtol)


# One of each kind of local form.
_SAMPLE = (
    "broadcast_in_dim: new and stretched dims",
    "concatenate: two",
    "conv_general_dilated: plain",
    "conv_general_dilated: spatial, shift",
    "dot_general: batched",
    "gather: keys",
    "gather: lookup, fill",
    "gather: two columns",
    "iota: first dim",
    "random_bits: batched keys",
    "random_bits: uint32",
    "reduce_max: two dims",
    "reduce_window_max: overlap of negatives",
    "reduce_window_sum: corners",
    "reshape: regroup",
    "scatter-add: rows, drop",
    "tile: in front of a dim",
)


@pytest.mark.parametrize("case", [c for c in CASES if str(c) in _SAMPLE], ids=str)
def test_a_sample_on_devices(case: Case) -> None:
    (run,) = runs_of(case.fun, case.operands, case.primitive)
    for sizes in MESHES:
        for strategy in sampled(list(enumerate_strategies(run.rule, sizes)), 5):
            check_on_devices(run, strategy, sizes, rtol=case.rtol)


def test_the_sample_exists() -> None:
    assert set(_SAMPLE) <= {str(case) for case in CASES}
