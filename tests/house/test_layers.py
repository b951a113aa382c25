"""The walls of the house hold: contracts in `pyproject.toml`, and no imports in a circle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tools.house import circles, modules

ROOT = Path(__file__).resolve().parents[2]
REVERSED = """
[tool.importlinter]
root_package = "meshwise"
[[tool.importlinter.contracts]]
name = "The wrong way round"
type = "layers"
containers = ["meshwise"]
layers = ["graph", "plan"]
"""


def lint(config: Path) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name("lint-imports")
    arguments = [str(command), "--no-cache", "--config", str(config)]
    return subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)


def test_rooms_import_only_rooms_below_them() -> None:
    found = lint(ROOT / "pyproject.toml")
    assert found.returncode == 0, found.stdout + found.stderr


def test_a_room_that_imports_upwards_is_found(tmp_path: Path) -> None:
    config = tmp_path / "pyproject.toml"
    config.write_text(REVERSED)
    found = lint(config)
    assert found.returncode == 1
    assert "meshwise.plan is not allowed to import meshwise.graph" in found.stdout


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circles(modules(ROOT / "src" / "meshwise")) == []
