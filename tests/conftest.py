"""Eight virtual CPU devices for every test, set before any test can touch a device."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import jax
import pytest

import meshwise.spmd.program as lowering
from meshwise.cluster import device_kind
from meshwise.inter.cost_table import second_process
from meshwise.inter.cost_table.layer_records import LayerRecords
from meshwise.planner import kept_records, schedule_choice
from meshwise.system.result_files import ResultFiles
from meshwise.system.user_cache import user_cache
from meshwise.train.options import TrainOptions
from oracle.problem import QUICK_OPTIONS

if "JAX_PLATFORMS" not in os.environ:
    jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)


def pytest_configure(config: pytest.Config) -> None:
    """Keep compiled programs for all checkouts of this user: a run compiles only what changed.

    And collect garbage rarely: a trace makes far more objects than the usual 700, nearly all stay
    until its end, and to walk all that JAX keeps of earlier tests took a tenth of the time.

    A shell that starts tests in the background has them ignore Ctrl-C, and `nohup` SIGHUP; what
    they start must not.
    """
    del config
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    gc.set_threshold(20_000, 20, 10)
    if sys.dont_write_bytecode:
        # As in images of containers: none beside the sources, which else each process compiles.
        sys.dont_write_bytecode, sys.pycache_prefix = False, str(user_cache() / "bytecode")
        del os.environ["PYTHONDONTWRITEBYTECODE"]
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(user_cache() / "tests")
    kept = {
        "jax_compilation_cache_dir": folder,
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    for name, value in kept.items():
        jax.config.update(name, value)
        # For the processes that tests start.
        os.environ[name.upper()] = str(value)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes all files in `golden/` anew."""
    parser.addoption("--update-goldens", action="store_true", help="write tests/golden anew")


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """A check that a text is that of a file in `golden/`; with `--update-goldens` it is written."""
    folder = Path(__file__).parent / "golden"

    def check(name: str, text: str) -> None:
        if request.config.getoption("--update-goldens"):
            (folder / name).write_text(text, encoding="utf-8")
        assert text == (folder / name).read_text(encoding="utf-8")

    return check


@pytest.fixture(scope="session")
def compiled_kernels() -> None:
    """All kernels are there, so that no test's time limit depends on compilation."""
    from meshwise.inter.kernel_set import compile_all_kernels

    compile_all_kernels()


@pytest.fixture(autouse=True)
def no_kept_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test plans anew: others may have planned with parts of the planner replaced."""
    monkeypatch.setattr(kept_records, "own_folder", lambda *_: None)


@pytest.fixture(scope="module")
def layers_known() -> Iterator[None]:
    """In a file pipelines are planned with what its earlier ones found out about their layers.

    They are the same plans (`planner/test_kept_records.py`), for tests that replace no part of the
    planner.  Nothing is written.
    """
    records = LayerRecords(ResultFiles(Path("no folder"), 0))
    with pytest.MonkeyPatch.context() as patch:
        made = schedule_choice.SharedPlans
        patch.setattr(schedule_choice, "SharedPlans", lambda *asked: made(*asked[:3], records))
        yield


@pytest.fixture(autouse=True)
def no_second_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipelines are planned in one process: others test at once, and to start one takes seconds."""

    def none(script: str) -> NoReturn:
        raise OSError(script)

    monkeypatch.setattr(second_process, "ChildProcess", none)


@contextmanager
def _without_buckets() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_kind, "_BUCKET_BYTES", dict.fromkeys(device_kind._BUCKET_BYTES, 0))
        yield


@pytest.fixture(scope="module")
def no_buckets() -> Iterator[None]:
    """In a file every collective pays its own latency.

    For tests of memory that binds: where latencies count, the fastest plan of a tiny model holds
    other bytes than the smallest.
    """
    with _without_buckets():
        yield


@pytest.fixture
def no_buckets_here() -> Iterator[None]:
    """As `no_buckets`, for one test."""
    with _without_buckets():
        yield


@pytest.fixture(autouse=True, scope="module")
def _programs_of_a_file() -> Iterator[None]:
    """JAX keeps what it traced and compiled for one file only.

    Else a worker holds 5 GB in the end, and a look through its objects for garbage takes ten
    seconds.  What is compiled again comes from disk.
    """
    yield
    jax.clear_caches()


@pytest.fixture
def x64() -> Iterator[None]:
    """Float64, in which parallel and single-device results agree to rounding."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def one_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `meshwise train` trains has one layer: half of the time to trace."""
    whole = TrainOptions.config
    monkeypatch.setattr(TrainOptions, "config", lambda self: replace(whole(self), num_layers=1))


@pytest.fixture
def quick_compile() -> Iterator[None]:
    """LLVM without optimisations: a third of the compile time, the same HLO."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def quick_steps(quick_compile: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parallel steps are compiled in a fifth of the time, with the same collectives.

    One LLVM module, and the emitters without MLIR.  Fusions differ from those of a user's program:
    not for tests of memory or of FLOP.  And not for scatters of any kind: these emitters write
    beyond the end of the operand in some batched ones (seen with `tests/rules`, JAX 0.10.2).
    """
    options = lowering.compile_options

    def with_more(platform: str, num_devices: int) -> dict[str, Any]:
        return options(platform, num_devices) | (dict(QUICK_OPTIONS) if platform == "cpu" else {})

    monkeypatch.setattr(lowering, "compile_options", with_more)
