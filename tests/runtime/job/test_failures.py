"""What an error that ends a process says of its job."""

from __future__ import annotations

import jax
import pytest

from meshwise.errors import ClusterError, TransportError
from meshwise.runtime.job.failures import exit_code_of, failure_text, may_be_of_another


def caused(error: BaseException, by: BaseException) -> BaseException:
    error.__cause__ = by
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("a"), False),
        (ClusterError("a"), False),
        (KeyboardInterrupt(), False),
        (TransportError("a"), True),
        (jax.errors.JaxRuntimeError("INTERNAL: Connection closed by peer"), True),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), False),
        (caused(ValueError("a"), TransportError("b")), True),
        (caused(ValueError("a"), ValueError("b")), False),
    ],
)
def test_which_errors_may_come_from_another_process(error: BaseException, expected: bool) -> None:
    assert may_be_of_another(error) is expected


def test_a_circle_of_causes_ends() -> None:
    error = ValueError("a")
    assert not may_be_of_another(caused(error, caused(ValueError("b"), error)))


def test_texts_are_one_line_and_short() -> None:
    assert failure_text(ValueError("a\nb"), 3) == "process 3 failed: ValueError: a"
    assert len(failure_text(ValueError("x" * 5_000_000), 3)) < 600
    assert failure_text(KeyboardInterrupt(), 0) == "process 0 was interrupted"
    assert failure_text(SystemExit(3), 1) == "process 1 ended with exit code 3"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError(), 1),
        (KeyboardInterrupt(), 130),
        (SystemExit(3), 3),
        (SystemExit("a text"), 1),
        (SystemExit(None), 0),
    ],
)
def test_exit_codes_are_those_of_python(error: BaseException, code: int) -> None:
    assert exit_code_of(error) == code
