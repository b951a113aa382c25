"""Small problems need no compiler, and what Python runs gives what machine code gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assignment.random_problems import random_problem
from doubles.kernels import compiled
from meshwise.assignment.reductions import reduction
from meshwise.assignment.reductions.reduction import reduce_problem
from meshwise.kernels.arrays import Floats
from meshwise.kernels.compiler import every_kernel_compiled, kernel, light_kernel, part

# Costs and choices of small problems; and the names of the kernels that were compiled for them.
_SOLVE = """
import json, sys
from contextlib import ExitStack
from dataclasses import replace
from assignment.random_problems import random_problem
from meshwise.assignment.reductions.reduction import reduce_problem
from meshwise.assignment.bounds.relaxation import relax
from meshwise.kernels.compiler import every_kernel_compiled
from meshwise.kernels.folder import kernel_folder

found = []
with ExitStack() as stack:
    if sys.argv[1] == "compiled":
        stack.enter_context(every_kernel_compiled())
    for seed in range(12):
        problem = random_problem(seed)
        # Sums that are rounded.
        costs = tuple(cost / 7 for cost in problem.costs)
        reduction = reduce_problem(replace(problem, costs=costs), keep=range(6))
        relaxed = relax(reduction.network, None, passes=20)
        found.append([relaxed.bound, relaxed.cost, relaxed.choice.tolist()])
kept = sorted(path.name.split("-")[0] for path in kernel_folder().rglob("*.nbi"))
print(json.dumps([found, kept]))
"""


def _solved(how: str, folder: Path | None = None) -> tuple[Any, list[str]]:
    """Answers, and the names of the kernels in a cache: that of the user, or a folder."""
    script = f"import sys; sys.path[:0] = {sys.path!r}\n{_SOLVE}"
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, how],
        env=os.environ | ({} if folder is None else {"XDG_CACHE_HOME": str(folder)}),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return tuple(json.loads(ran.stdout))


def test_small_problems_compile_nothing_and_have_the_same_answers(tmp_path: Path) -> None:
    by_python, none = _solved("interpreted", tmp_path)
    assert none == []
    assert by_python == _solved("compiled")[0]


@pytest.mark.slow
def test_machine_code_is_kept_and_used_at_once(tmp_path: Path) -> None:
    compiled, kept = _solved("compiled", tmp_path)
    assert {"reduction._run", "relaxation._raise"} <= set(kept)
    # Nothing more is compiled.
    assert _solved("interpreted", tmp_path) == (compiled, kept)


def test_small_problems_tell_what_large_ones_will_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is set aside counts as elements, so that there must be little of it."""
    sizes: list[int] = []

    def measured(*state: Any) -> Any:
        sizes.append(sum(array.size for part in state for array in part))
        return state[3]

    monkeypatch.setattr(reduction, "_run", measured)
    problem = random_problem(0)
    reduce_problem(problem)
    numbers = sum(map(len, problem.costs)) + sum(pair.cost.size for pair in problem.pairs)
    assert sizes[0] < 10 * numbers


@part
def _twice(values: Floats) -> float:
    return 2 * values[0]


def _is_compiled(function: Any) -> bool:
    return bool(compiled(function).signatures)


def test_large_arrays_are_for_machine_code() -> None:
    @light_kernel
    def first(values: Floats) -> float:
        return _twice(values)

    assert first(np.ones(3)) == 2.0
    assert not _is_compiled(first)
    # An array of 10^9 elements that takes no room.
    assert first(np.broadcast_to(np.ones(1), 10**9)) == 2.0
    assert _is_compiled(first)
    assert first(np.ones(3)) == 2.0


def test_kernels_call_light_kernels() -> None:
    @light_kernel
    def inner(values: Floats) -> float:
        return _twice(values) + 1

    @kernel
    def outer(values: Floats) -> float:
        return inner(values) + _twice(values)

    assert outer(np.ones(2)) == 5.0


def test_all_may_be_compiled_ahead() -> None:
    @light_kernel
    def first(values: Floats) -> float:
        return values[0]

    with every_kernel_compiled():
        assert first(np.ones(2)) == 1.0
    assert _is_compiled(first)
