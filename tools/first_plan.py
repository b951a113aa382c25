"""Time the first plan of an installed wheel: `python tools/first_plan.py`.

A wheel is built and installed with its base dependencies alone in an empty environment.  There the
program of the README plans its step, in new processes: first with an empty cache folder, then twice
with what the first one left there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from evaluation.machine import this_machine

ROOT = Path(__file__).resolve().parents[1]
_TIMED = """
import json, os, time
def now():
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system, time.perf_counter()
marks = [now()]
import jax, jax.numpy as jnp
jax.config.update("jax_num_cpu_devices", 8)
import meshwise as mw
mw.parallelize, mw.value_and_grad, jax.devices()
marks.append(now())
{program}
marks.append(now())
print(json.dumps(marks))
"""


def main() -> None:
    """Print a table in Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        python, environment = _installed(Path(folder))
        program = _planning()
        print(f"{this_machine()}.\n")
        print("| caches | import, CPU s (s) | plan, CPU s (s) |\n|---|---:|---:|")
        for name in ("cold", "warm", "warm"):
            command = [python, "-c", _TIMED.replace("{program}", program)]
            ran = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, check=True
            )
            start, imported, planned = json.loads(ran.stdout.splitlines()[-1])
            cells = [
                f"{end[0] - begin[0]:.2f} ({end[1] - begin[1]:.2f})"
                for begin, end in ((start, imported), (imported, planned))
            ]
            print(f"| {name} | {' | '.join(cells)} |")


def _installed(folder: Path) -> tuple[str, dict[str, str]]:
    """Return the Python of a new environment with the wheel, and variables for its processes."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    source = folder / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    python = str(folder / "venv" / "bin" / "python")
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    for command in (
        [sys.executable, "-m", "venv", str(folder / "venv")],
        [*pip, "wheel", "--no-deps", "-w", str(folder), str(source)],
    ):
        subprocess.run(command, env=kept, check=True)
    (wheel,) = folder.glob("*.whl")
    install = [*pip, "install", "-c", str(ROOT / "constraints.txt"), str(wheel)]
    subprocess.run(install, env=kept, check=True)
    return python, kept | {"XDG_CACHE_HOME": str(folder / "cache"), "PYTHONWARNINGS": "ignore"}


def _planning() -> str:
    """Return the program of the README up to its batch, and a plan."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r'```python title="step.py"\n(.*?)```', readme, re.DOTALL)
    assert found is not None
    program = found[1][found[1].index("def create_state") : found[1].index("state = train_step")]
    shapes = "jax.eval_shape(create_state, jax.random.key(0))"
    return f"{program}\nprint(train_step.plan({shapes}, batch).explain())"


if __name__ == "__main__":
    main()
