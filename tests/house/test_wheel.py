"""The wheel, in an empty environment: what `pip install meshwise` brings plans a step."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from doubles.page_blocks import blocks_of

ROOT = Path(__file__).resolve().parents[2]
PLAN = """
import jax, jax.numpy as jnp, meshwise as mw
step = mw.parallelize(
    lambda w, x: (w - jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w), jnp.sum(x)),
    cluster=mw.Cluster.virtual("1x p3.16xlarge"),
)
shapes = [jax.ShapeDtypeStruct(s, "float32") for s in ((256, 256), (64, 256))]
print(step.plan(*shapes).explain())
"""


@pytest.mark.slow
def test_a_wheel_plans_a_step_and_names_the_extra_that_training_needs(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}

    def run(*command: str, code: int = 0) -> str:
        found = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert found.returncode == code, found.stdout + found.stderr
        return found.stdout + found.stderr

    # A build leaves files beside its source, which would be in the next wheel.
    source = tmp_path / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = ("-m", "pip", "--disable-pip-version-check")
    run(sys.executable, *pip, "wheel", "--quiet", "--no-deps", "-w", str(tmp_path), str(source))
    (wheel,) = tmp_path.glob("*.whl")
    run(sys.executable, "-m", "twine", "check", "--strict", str(wheel))
    run(sys.executable, "-m", "venv", "fresh")
    python = str(tmp_path / "fresh" / "bin" / "python")
    run(python, *pip, "install", "--quiet", "-c", str(ROOT / "constraints.txt"), str(wheel))
    assert "8 x V100" in run(python, "-c", PLAN)
    (step,) = (b for b in blocks_of((ROOT / "README.md").read_text("utf-8")) if b.title)
    (tmp_path / step.title).write_text(step.text, encoding="utf-8")
    assert "8 x virtual CPU" in run(python, step.title)
    meshwise = str(tmp_path / "fresh" / "bin" / "meshwise")
    assert "doctor" in run(meshwise, "--help")
    assert "pip install 'meshwise[train]'" in run(meshwise, "train", code=1)
    options = ("--model", "gpt-tiny", "--cluster", "1x p3.8xlarge")
    assert "pip install 'meshwise[train]'" in run(meshwise, "plan", *options, code=2)
    assert "--cluster" in run(meshwise, "plan", "--help")
