"""Commands say in a line what is wrong with a file, and write only what they are asked to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from hostile.bounds import bounded
from hostile.mutations import bomb, json_of, packed, toml_of
from hostile.valid import CLUSTERS, HOST, INSTANCE_FILE, PLANS, PROFILE_FILE
from meshwise.cli import main

PIPELINE = PLANS[-1]
GOOD = json_of(PIPELINE)
FILES: dict[str, bytes | Callable[[], bytes]] = {
    "empty": b"",
    "not UTF-8": b"\xff\xfe{",
    "zeros": b"\x00" * 100,
    "gzip": packed(GOOD),
    "bomb": lambda: bomb(b"{", b" ", 2**28),
    "cut": GOOD[: len(GOOD) // 2],
    "deep": b"[" * 10**6,
    "another kind": PROFILE_FILE,
    "long key": json_of({"x" * 10**6: 1}),
    "path as name": json_of(PIPELINE | {"model": 7, "method": "../../../tmp/hostile"}),
    "many micro-batches": json_of(PIPELINE | {"num_microbatches": 2**62}),
}
# Of each command what stands before the file, and its exit code.
COMMANDS = {
    "explain": (["explain"], 1),
    "explain --html": (["explain", "--html", "page.html"], 1),
    "diff": (["diff", "good.json"], 2),
    "simulate": (["simulate", "--trace", "trace.json"], 1),
    "verify": (["verify", "--model", "gpt-mini"], 1),
    "solve": (["solve"], 1),
    # Wrong use, as any option that means nothing.
    "simulate --cluster": (["simulate", "good.json", "--cluster"], 2),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("file", FILES)
def test_hostile_files(
    command: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.json").write_bytes(GOOD)
    name = "bad.toml" if command.endswith("--cluster") else "bad.json"
    data = FILES[file]
    (tmp_path / name).write_bytes(data() if callable(data) else data)
    words, code = COMMANDS[command]
    with bounded():
        result = CliRunner().invoke(main, [*words, name])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    assert result.stdout == ""
    assert name in result.stderr
    # Two lines of usage, and a blank one, where it is wrong use.
    assert len(result.stderr.splitlines()) <= (4 if code == 2 else 1)
    assert len(result.stderr) < 1500
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["good.json", name])


def test_names_in_files_are_no_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    name = "../../written"
    document = PIPELINE | {"model": name, "method": name, "fingerprint": name, "status": name}
    document["cluster"] = toml_cluster = PIPELINE["cluster"] | {"name": name}
    assert toml_cluster["name"] == name
    (folder / "plan.json").write_bytes(json_of(document))
    (folder / "lab.toml").write_bytes(toml_of(CLUSTERS[0] | {"name": name}))
    (folder / "i.json").write_bytes(INSTANCE_FILE.replace(b"small", name.encode()))
    asked = (
        ["explain", "plan.json", "--html", "page.html"],
        ["simulate", "plan.json", "--trace", "trace.json"],
        ["simulate", "plan.json", "--cluster", "lab.toml"],
        ["solve", "i.json", "--time-limit", "2"],
    )
    for words in asked:
        result = CliRunner().invoke(main, words)
        assert result.exception is None or isinstance(result.exception, SystemExit), words
    found = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*"))
    written = ["i.json", "lab.toml", "page.html", "plan.json", "trace.json"]
    assert found == ["a", "a/b", *(f"a/b/{name}" for name in written)]


def test_a_profile_of_another_folder_is_only_read(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "p.json").write_bytes(PROFILE_FILE)
    (tmp_path / "b" / "lab.toml").write_bytes(
        toml_of({"profile": str(tmp_path / "p.json"), "num_hosts": 2})
    )
    (tmp_path / "b" / "plan.json").write_bytes(GOOD)
    result = CliRunner().invoke(
        main,
        ["simulate", str(tmp_path / "b/plan.json"), "--cluster", str(tmp_path / "b/lab.toml")],
    )
    assert HOST["device"]["name"] in result.output
    assert (tmp_path / "p.json").read_bytes() == PROFILE_FILE
