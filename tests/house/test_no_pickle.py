"""No file is read by what runs code of it: plans, profiles, clusters and problems are data."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "src" / "meshwise"
UNSAFE = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
# Between processes of one user, through pipes that this program made, never from a file.
THROUGH_PIPES = {"system/child_process.py"}
# They name the error only.
ERRORS_ONLY = {"calibrate/workers.py", "inter/cost_table/second_process.py"}
# Ray sends arguments and results by cloudpickle; this asks it whether it can.
THROUGH_RAY = {"hosts/ray/host.py"}


def unsafe_calls(source: str) -> set[str]:
    """Return calls that read what may run code, and imports of modules that have such calls."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found |= {n.name.split(".")[0] for n in names if n.name.split(".")[0] in UNSAFE}
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in UNSAFE:
                found.add(module)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="load" | "loads")):
                if name not in ("json", "tomllib"):
                    found.add(f"{name}.{node.func.attr}")
            case ast.Call(func=ast.Name(id="eval" | "exec" as name)):
                found.add(name)
            case ast.keyword(arg="allow_pickle"):
                found.add("allow_pickle")
            case _:
                pass
    return found


def test_no_pickle_is_read_from_a_file() -> None:
    found = {
        path.relative_to(SOURCES).as_posix(): calls
        for path in sorted(SOURCES.rglob("*.py"))
        if (calls := unsafe_calls(path.read_text(encoding="utf-8")))
    }
    assert found == {
        **{name: {"pickle"} for name in sorted(ERRORS_ONLY)},
        **{name: {"pickle", "pickle.loads"} for name in THROUGH_PIPES},
        **{name: {"pickle.loads"} for name in THROUGH_RAY},
    }


def test_what_reads_pickles_is_found() -> None:
    assert unsafe_calls("import pickle as p\nfrom cloudpickle import loads") == {
        "pickle",
        "cloudpickle",
    }
    assert unsafe_calls("np.load(path, allow_pickle=True)") == {"np.load", "allow_pickle"}
    assert unsafe_calls("eval(text)") == {"eval"}
