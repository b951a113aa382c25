"""Plans that begin with what earlier ones found out: the same plans, with less work."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

import meshwise as mw
from doubles.perceptron import perceptron
from meshwise.inter.cost_table.layer_records import LayerRecords
from meshwise.inter.layer_cost import layer_network, state_costs
from meshwise.planner import kept_records as kept_records_file
from meshwise.planner.kept_records import kept_records
from meshwise.planner.pipeline import plan_pipeline
from meshwise.request.pipeline_request import PipelineRequest
from meshwise.schedules.registry import SEARCHED, choices
from meshwise.system.own_folder import own_folder
from meshwise.system.result_files import ResultFiles
from meshwise.trace.step import StepSignature

SIGNATURE = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")
CLUSTER = mw.Cluster.virtual("1x p3.8xlarge")


def planned(records: LayerRecords | None, **changes: Any) -> str:
    """The JSON of a plan of four layers, narrow in the middle."""
    step, state, batch = perceptron((512, 128, 256, 64, 512), 64)
    asked = {
        "cluster": CLUSTER,
        "num_layers": 4,
        "num_microbatches": (4,),
        "schedules": (choices()["1f1b"],),
        **changes,
    }
    request = PipelineRequest(**asked)
    found = plan_pipeline(step, (state, batch), {}, SIGNATURE, request, records=records)
    return found.plan.to_json()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of records; kernels stay where they are."""
    monkeypatch.setattr(kept_records_file, "own_folder", own_folder)
    monkeypatch.setattr(kept_records_file, "user_cache", lambda: tmp_path)
    tmp_path.chmod(0o700)
    return tmp_path / "layers"


def with_records(**changes: Any) -> str:
    with kept_records() as records:
        return planned(records, **changes)


WHAT_IFS: list[dict[str, Any]] = [
    {"schedules": SEARCHED},
    {"num_stages": 2},
    {"memory_bytes": 3_000_000},
    {"num_microbatches": (4, 8)},
    {"cluster": mw.Cluster.virtual("2x p3.8xlarge")},
    {"schedules": (choices()["gpipe"],)},
    {"pins": (("stages", "0-1,2-3"), ("remat", "full"))},
    {"pins": (("0/0/1", "P(-, x)"),)},
]


@pytest.mark.parametrize(
    "what_ifs", [WHAT_IFS[:2], pytest.param(WHAT_IFS, marks=pytest.mark.slow)], ids=len
)
def test_a_plan_is_the_same_without_records_with_new_and_with_old_ones(
    what_ifs: list[dict[str, Any]],
) -> None:
    without = [planned(None, **asked) for asked in what_ifs]
    assert len(set(without)) > len(what_ifs) // 2
    # Each begins with what those before it found out; the second time, with everything.
    for _ in range(2):
        assert [with_records(**asked) for asked in what_ifs] == without


def test_what_is_known_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = with_records()
    done: list[str] = []

    def counted(where: Any, name: str) -> None:
        function = getattr(where, name)

        def noted(*args: Any, **changes: Any) -> Any:
            done.append(name)
            return function(*args, **changes)

        monkeypatch.setattr(where, name, noted)

    for where, name in (
        (layer_network, "build_network"),
        (layer_network, "footprint"),
        (layer_network, "ConditionalBounds"),
        (state_costs, "ConditionalBounds"),
        (state_costs, "solve_relaxed"),
    ):
        counted(where, name)
    assert with_records() == first
    # Decisions are made of the networks of the stages that were chosen.
    assert set(done) == {"build_network"}
    few = len(done)
    done.clear()
    assert planned(None) == first
    assert done.count("build_network") > 2 * few


def test_parallelize_begins_with_what_earlier_plans_found_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, state, batch = perceptron((64, 32, 64, 32, 64), 16)
    method = mw.Auto(stages=2, schedule="1f1b")

    def found() -> str:
        parallel = mw.parallelize(step, method=method, cluster=CLUSTER, num_microbatches=4)
        return parallel.plan(state, batch).to_json()

    first = found()
    assert list(folder.iterdir())
    written: list[str] = []
    monkeypatch.setattr(ResultFiles, "write", lambda _, key, __: written.append(key))
    assert found() == first
    # Nothing new was found out.
    assert written == []


def test_damaged_files_are_as_if_they_were_not_there(folder: Path) -> None:
    first = with_records()
    files = sorted(folder.iterdir())
    assert files
    for n, path in enumerate(files):
        data = path.read_bytes()
        path.write_bytes((b"", data[: len(data) // 2], bytes(len(data)), data + b"x")[n % 4])
    assert with_records() == first
    # They are written anew.
    assert all(path.stat().st_size > 0 for path in files)


def test_what_an_interrupted_plan_found_out_is_kept(folder: Path) -> None:
    def interrupted() -> None:
        with kept_records() as records:
            planned(records)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(folder.iterdir())


def test_a_folder_that_others_can_write_keeps_nothing(folder: Path) -> None:
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    first = with_records()
    assert not list(folder.iterdir())
    assert with_records() == first


def test_sources_that_changed_keep_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_records_file, "sources_digest", lambda _: None)
    with_records()
    assert not list(folder.iterdir())


def test_a_limit_of_time_keeps_nothing(folder: Path) -> None:
    with_records(time_limit_s=1e6)
    assert not list(folder.iterdir())


_SCRIPT = """
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from meshwise.planner import kept_records
kept_records.user_cache = lambda: Path(sys.argv[1])
from planner.test_kept_records import with_records
print(with_records(num_stages=2), end="")
"""


@pytest.mark.slow
def test_two_processes_at_once(tmp_path: Path) -> None:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _SCRIPT, str(tmp_path)],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=300)[0].decode() for process in processes]
    assert outputs == [planned(None, num_stages=2)] * 2


def test_nothing_is_kept_where_libraries_do_not_say_their_versions(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(kept_records_file, "version", unknown)
    assert with_records() == planned(None)
    assert not list(folder.iterdir())
