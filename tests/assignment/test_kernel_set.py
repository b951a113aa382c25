"""After `KERNELS.compile` no problem needs another specialisation of a kernel."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("compiled_kernels")

# In a process of its own: kernels that other tests have called would count as compiled.
SCRIPT = """
import importlib, pkgutil
import meshwise.assignment as solver
from assignment.problems import random_instance
from doubles.kernels import compiled
from meshwise.assignment.instance_solver import solve_instance
from meshwise.assignment.kernel_set import KERNELS
from meshwise.assignment.options import SolverOptions

WHOLE = SolverOptions(small_columns=0)
modules = [importlib.import_module(m.name)
           for m in pkgutil.walk_packages(solver.__path__, f"{solver.__name__}.")]
found = {f"{m.__name__}.{name}": compiled(value)
         for m in modules for name, value in vars(m).items()}
kernels = {name: value for name, value in found.items() if hasattr(value, "nopython_signatures")}

def known():
    return {(name, str(s)) for name, kernel in kernels.items() for s in kernel.nopython_signatures}

# FIRST
before = known()
for seed in range(30):
    instance = random_instance(seed, tight=None if seed % 3 else 0.2)
    solve_instance(instance, time_limit_s=600, options=WHOLE)
instance = random_instance(3, num_nodes=60, tight=0.3, forbid=False)
solve_instance(instance, time_limit_s=2, options=WHOLE)
for added in sorted(known() - before):
    print(added)
"""


def _specialisations_added(first: str) -> list[str]:
    script = f"import sys; sys.path[:0] = {sys.path!r}\n" + SCRIPT.replace("# FIRST", first)
    found = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True
    )
    return found.stdout.splitlines()


def test_solving_adds_no_specialisation() -> None:
    assert _specialisations_added("KERNELS.compile()") == []


def test_specialisations_are_seen() -> None:
    assert any("improve" in line for line in _specialisations_added("pass"))
