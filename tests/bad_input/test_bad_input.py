"""Bad input: each mistake is a typed error that teaches, before a device is used.

More of them stand in `test_arguments`, `test_options`, `test_pins` and `plan/test_plan`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jax
import pytest

import meshwise as mw
from bad_input.arguments import ARGUMENTS
from bad_input.case import CLUSTER, STATE, Case, X, step
from bad_input.pipelines import PIPELINES
from bad_input.plans import PLANS
from bad_input.steps import STEPS
from meshwise.runtime import executable

CASES = (*STEPS, *ARGUMENTS, *PIPELINES, *PLANS)
COMPILED: list[str] = []


@pytest.fixture(autouse=True)
def no_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails where anything is compiled, computed or put on a device."""

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if "backend_compile" in event:
            COMPILED.append(event)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a device was used")

    COMPILED.clear()
    jax.monitoring.register_event_duration_secs_listener(listen)
    for module, name in ((jax, "device_put"), (executable, "compile_decided")):
        monkeypatch.setattr(module, name, refuse)
    yield
    jax.monitoring.unregister_event_duration_listener(listen)
    assert not COMPILED


def test_the_guard_bites() -> None:
    with pytest.raises(AssertionError, match="a device was used"):
        mw.parallelize(step, method=mw.DataParallel(), cluster=CLUSTER)(STATE, X)
    with pytest.raises(AssertionError, match="a device was used"):
        jax.device_put(X)
    assert not COMPILED
    jax.jit(lambda x: x * 41)(X)
    assert COMPILED
    COMPILED.clear()


@pytest.mark.filterwarnings("ignore:Python iterable type")  # JAX on generators
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_bad_input(case: Case) -> None:
    with pytest.raises(case.error) as caught:
        case.make()
    text = str(caught.value)
    # `{line}` and `{any}` stand for what is not the same in each run.
    parts = [re.escape(part) for part in re.split(r"\{line\}|\{any\}", case.text)]
    assert re.search(".*".join(parts), text), text


def test_there_are_enough() -> None:
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)
