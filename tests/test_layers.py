"""The house rules of imports, read from the source with `ast`: nothing is executed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "meshwise"

# A folder imports only from itself and from the lines above its own.
LAYERS = (
    "errors units collector atomic_file child_process",
    "cluster",
    "graph",
    # A plan lists its collectives, so it needs the paths of `resharding`, which need no plan.
    "resharding",
    "plan",
    "schedules",
    "program",
    "simulate",
    # What a decided graph holds on a device, as the compiler of a target would have it.
    "memory",
    "intra",
    "inter",
    "baselines",
    "report",
    # Looks at the installation from outside, so that it also answers where JAX is broken.
    "doctor",
    "jax_compat",
    "rules",
    "trace",
    "spmd",
    "runtime",
    "calibrate",
    "measure",
    "models",
    "methods",
    "pins",
    "following",
    "local_cluster",
    "finished_plan",
    "planning",
    "pipeline_pins",
    "pinned_layers",
    "pinned_search",
    "planned_layers",
    "pipeline_planning",
    "pipeline_replay",
    "following_stages",
    "pipeline_request",
    "replay_request",
    "pricing",
    "arguments",
    "init_state",
    "bound_steps",
    "parallel_step",
    "api",
    "__init__",
    "train",
    "cli",
    "__main__",
)
RANK = {name: rank for rank, line in enumerate(LAYERS) for name in line.split()}
FIRST_JAX_LAYER = "jax_compat"
JAX_FAMILY = {"jax", "jaxlib", "flax", "optax", "orbax", "chex"}

FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


def imported_modules(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full name of every import, also those inside functions and TYPE_CHECKING."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            assert node.module is not None
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def layer_of_file(file: str) -> str:
    """Layer of a file given relative to the package, as `graph` for `graph/layout.py`."""
    return file.split("/")[0].removesuffix(".py")


def layer_of_module(module: str) -> str | None:
    """Layer of an imported name; None if it is not ours."""
    parts = module.split(".")
    if parts[0] != "meshwise":
        return None
    if len(parts) > 1 and parts[1] in RANK:
        return parts[1]
    return "__init__"


def violations(file: str, source: str) -> list[str]:
    """What a file with this source would break."""
    found: list[str] = []
    layer = layer_of_file(file)
    for line, module in imported_modules(ast.parse(source)):
        top = module.split(".")[0]
        other = layer_of_module(module)
        if other is not None and RANK[other] > RANK[layer]:
            found.append(f"{file}:{line}: layer {layer} imports {module} of layer {other}")
        if top in JAX_FAMILY and RANK[layer] < RANK[FIRST_JAX_LAYER]:
            found.append(f"{file}:{line}: {layer} is JAX-free but imports {module}")
        private = module.startswith("jax._src") or top == "jaxlib"
        if private and layer != "jax_compat":
            found.append(f"{file}:{line}: only jax_compat.py may import {module}")
    return found


@pytest.mark.parametrize("file", FILES)
def test_file_keeps_to_its_layer(file: str) -> None:
    assert layer_of_file(file) in RANK, f"{file}: add its folder to LAYERS and ARCHITECTURE.md"
    assert violations(file, (PACKAGE / file).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("file", "source", "message"),
    [
        ("graph/x.py", "from meshwise.intra import model", "graph imports meshwise.intra.model"),
        ("graph/x.py", "def f():\n    import meshwise.api", "layer graph imports meshwise.api"),
        ("intra/x.py", "import meshwise as mw", "of layer __init__"),
        ("cluster/x.py", "import jax.numpy as jnp", "cluster is JAX-free but imports jax.numpy"),
        ("report/x.py", "from flax import linen", "report is JAX-free"),
        ("spmd/x.py", "from jax._src import core", "only jax_compat.py may import jax._src.core"),
        ("spmd/x.py", "from jax import _src", "only jax_compat.py may import jax._src"),
        ("trace/x.py", "import jaxlib", "only jax_compat.py may import jaxlib"),
    ],
)
def test_a_violation_is_found(file: str, source: str, message: str) -> None:
    found = violations(file, source)
    assert len(found) == 1
    assert message in found[0]


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("graph/x.py", "from meshwise.graph.layout import Layout\nfrom meshwise import errors"),
        ("train/x.py", "import meshwise as mw\nfrom meshwise.api import parallelize\nimport jax"),
        ("jax_compat.py", "from jax._src import core"),
    ],
)
def test_a_legal_import_passes(file: str, source: str) -> None:
    assert violations(file, source) == []


def test_files_were_found() -> None:
    assert "graph/layout.py" in FILES
