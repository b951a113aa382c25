"""GPTs in float32 and bfloat16, against one device (I1)."""

from __future__ import annotations

import pytest

import meshwise as mw
from doubles.few import few_rows
from oracle.compare import assert_same_bf16, assert_same_fp32
from oracle.gpt_problems import Case
from oracle.gpt_rows import Row, case_noise, case_reference, row_case, row_name, run_case


def _check_fp32(row: Row) -> None:
    case, method, b = row_case(row, "float32"), row[5], row[6]
    assert_same_fp32(case_reference(case), run_case(case, method, b), case_noise(case))


@pytest.mark.slow
def test_gpt_in_float32_compiled_as_users_compile_it():
    _check_fp32(("scan", "sgd", False, "masked", False, mw.IntraOp((2, 4)), 2))


@pytest.mark.usefixtures("quick_steps")
@pytest.mark.parametrize(
    "row",
    [
        ("scan", "adam", True, "masked", False, mw.Zero3(), 4),
        pytest.param(
            ("unrolled", "adam", False, "mean", True, mw.Megatron(2, 4), 1), marks=pytest.mark.slow
        ),
    ],
    ids=row_name,
)
def test_gpt_in_float32(row):
    _check_fp32(row)


@pytest.mark.usefixtures("quick_steps")
@pytest.mark.parametrize(
    ("method", "b"),
    few_rows([(mw.DataParallel(), 2), (mw.IntraOp((2, 4)), 1)], [(mw.DataParallel(), 2)]),
)
def test_gpt_with_bfloat16_compute_and_float32_parameters(method, b):
    case = Case("scan", "sgd", True, "mean", True, "bfloat16", "float32")
    assert_same_bf16(case_reference(case), run_case(case, method, b))
