"""Executables that are kept: the second start compiles nothing, JAX's settings stay as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from meshwise.runtime import kept_programs as kept_programs_file
from meshwise.runtime.kept_programs import kept_programs, program_folder

QUICK = {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "true"}
HITS, MISSES = "/jax/compilation_cache/cache_hits", "/jax/compilation_cache/cache_misses"

START = """
import json, sys
from pathlib import Path
import jax, jax.numpy as jnp
jax.config.update("jax_num_cpu_devices", 4)
counts = {}
def listen(event, **_):
    counts[event] = counts.get(event, 0) + 1
jax.monitoring.register_event_listener(listen)
import meshwise as mw
from meshwise.cluster.cpu import cpu_cluster
from meshwise.runtime import kept_programs
kept_programs.user_cache = lambda: Path(sys.argv[1])

def loss(params, batch):
    for weight in params.values():
        batch = jnp.tanh(batch @ weight)
    return jnp.mean(batch ** 2)

def step(params, batch):
    value, grads = mw.value_and_grad(loss)(params, batch)
    return jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), value

params = {f"w{n}": jnp.full((32, 32), 0.1 + n / 100) for n in range(2)}
parallel = mw.parallelize(
    step, method=mw.Auto(stages=2, schedule="1f1b"), cluster=cpu_cluster(4), num_microbatches=2
)
counts.clear()
losses = []
for _ in range(3):
    params, value = parallel(params, jnp.ones((8, 32)))
    losses.append(float(value).hex())
found = dict(counts)
jax.jit(lambda x: x * 42)(jnp.ones(3))
print(json.dumps({
    "losses": losses,
    "peak": parallel.stats()["measured_peak_bytes"],
    "hits": found.get("/jax/compilation_cache/cache_hits", 0),
    "misses": found.get("/jax/compilation_cache/cache_misses", 0),
    "folder": jax.config.jax_compilation_cache_dir,
    "least_s": jax.config.jax_persistent_cache_min_compile_time_secs,
}))
"""


def started(cache: Path, **settings: str) -> dict[str, Any]:
    """What a start of a pipeline in a process of its own says."""
    plain = {name: value for name, value in os.environ.items() if "_CACHE_" not in name}
    done = subprocess.run(
        [sys.executable, "-c", START, str(cache)],
        env=plain | QUICK | settings,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def kept(cache: Path) -> list[Path]:
    return sorted(cache.glob("**/*-cache"))


@pytest.mark.slow
def test_the_second_start_of_a_pipeline_compiles_nothing(tmp_path: Path) -> None:
    first = started(tmp_path)
    files = kept(tmp_path)
    assert len(files) == first["misses"] > 5
    second = started(tmp_path)
    assert (second["hits"], second["misses"]) == (first["misses"] + first["hits"], 0)
    assert kept(tmp_path) == files
    assert all(path.parent.name.startswith("programs-") for path in files)
    for name in ("losses", "peak"):
        assert first[name] == second[name]
    # What JAX is set to is what it was, and a program of the user's own is not kept.
    assert first["folder"] is None
    assert first["least_s"] == 1.0


@pytest.mark.slow
def test_jax_decides_whether_and_where(tmp_path: Path) -> None:
    none = started(tmp_path / "none", JAX_ENABLE_COMPILATION_CACHE="false")
    assert not kept(tmp_path / "none")
    own = started(tmp_path / "not", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "own"))
    assert not kept(tmp_path / "not")
    assert len(kept(tmp_path / "own")) == own["misses"] > 5
    assert none["losses"] == own["losses"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of programs, as if the user had given JAX none."""
    monkeypatch.setattr(kept_programs_file, "keeps_programs", lambda: "here")
    monkeypatch.setattr(kept_programs_file, "user_cache", lambda: tmp_path)
    found = program_folder()
    assert found is not None
    yield found
    jax.clear_caches()


def run_once(factor: int, *, events: list[str] | None = None) -> None:
    def listen(event: str, **_: str | int) -> None:
        if events is not None and event in (HITS, MISSES):
            events.append(event)

    jax.clear_caches()
    jax.monitoring.register_event_listener(listen)
    try:
        with kept_programs():
            jax.jit(lambda x: x * factor + 1)(jnp.ones(3)).block_until_ready()
    finally:
        jax.monitoring.unregister_event_listener(listen)


def test_what_a_killed_process_wrote_in_part_is_written_anew(folder: Path) -> None:
    run_once(3)
    files = kept(folder)
    assert files
    for path in files:
        path.write_bytes(path.read_bytes()[:-20])
    events: list[str] = []
    run_once(3, events=events)
    assert HITS not in events
    assert kept(folder) == files
    events.clear()
    run_once(3, events=events)
    assert MISSES not in events
    assert HITS in events


def test_the_folder_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_once(5)
    number = len(kept(folder))
    size = sum(path.stat().st_size for path in kept(folder))
    monkeypatch.setattr(kept_programs_file, "_MOST_BYTES", size)
    for factor in (6, 7, 8):
        run_once(factor)
    assert 0 < sum(path.stat().st_size for path in kept(folder)) <= size
    assert len(kept(folder)) <= number


def test_a_block_inside_another_one_leaves_it_as_it_was(folder: Path) -> None:
    events: list[str] = []
    with kept_programs():
        run_once(9)
        run_once(10)
    run_once(10, events=events)
    assert MISSES not in events
