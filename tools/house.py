"""Figures about the house: how much code each room has, and where the rules of style are broken.

    python tools/house.py                         this checkout
    python tools/house.py OTHER/src/meshwise      another one, beside it

Nothing is imported: everything is read from syntax trees.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "meshwise"
TOP = {"__init__", "__main__", "errors", "units"}
MOST_LINES, MOST_PARAMETERS, MOST_FILES = 60, 6, 16
JAX_FAMILY = {"jax", "jaxlib", "flax", "optax", "orbax", "chex"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A source file.

    Attributes:
        name: Dotted, from the package on; empty for the package itself.
        folder: Of the file, relative to the package; `.` for the top.
        text: Its source.
        tree: Its syntax tree.
    """

    name: str
    folder: str
    text: str
    tree: ast.Module = field(repr=False)


def modules(package: Path) -> list[Module]:
    """Return the modules of a package."""
    found: list[Module] = []
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package)
        name = ".".join(relative.with_suffix("").parts).removesuffix("__init__").rstrip(".")
        text = path.read_text(encoding="utf-8")
        folder = relative.parent.as_posix()
        found.append(Module(name=name, folder=folder, text=text, tree=ast.parse(text)))
    return found


def code_lines(module: Module) -> int:
    """Return the number of lines that are neither empty, nor a comment, nor a docstring."""
    docstrings: set[int] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node):
            first = node.body[0]
            docstrings.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = module.text.splitlines()
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in docstrings
        for number, line in enumerate(lines, start=1)
    )


def imports(module: Module, names: set[str]) -> set[str]:
    """Return the modules of the package that a module imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "meshwise":
            base = (node.module or "").removeprefix("meshwise").lstrip(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".lstrip(".")
                found.add(inner if inner in names else base)
    return found & names - {module.name, ""}


def circles(package: list[Module]) -> list[list[str]]:
    """Return groups of modules that import each other, by Tarjan's algorithm."""
    names = {module.name for module in package}
    edges = {module.name: sorted(imports(module, names)) for module in package}
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in edges[name]:
            if other not in order:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == order[name]:
            group: list[str] = []
            while not group or group[-1] != name:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    sys.setrecursionlimit(10_000)
    for name in edges:
        if name not in order:
            visit(name)
    return found


def functions(module: Module) -> Iterator[tuple[str, Function]]:
    """Yield the functions of a module with their places."""
    for node in ast.walk(module.tree):
        if isinstance(node, Function):
            yield f"{module.name}.{node.name}", node


def num_parameters(function: Function) -> int:
    """Return the number of parameters, without `self` and `cls`."""
    arguments = function.args
    named = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len(named) - (named[:1] in (["self"], ["cls"]))


def is_command(function: Function) -> bool:
    """Return whether a function is a command, whose parameters are declarations of options."""
    return any("click." in ast.unparse(decorator) for decorator in function.decorator_list)


def long_functions(package: list[Module]) -> list[str]:
    """Return the functions of more than `MOST_LINES` lines, docstrings counted."""
    return [
        place
        for module in package
        for place, node in functions(module)
        if (node.end_lineno or 0) - node.lineno + 1 > MOST_LINES and not is_command(node)
    ]


def wide_functions(package: list[Module]) -> list[str]:
    """Return the functions of more than `MOST_PARAMETERS` parameters."""
    return [
        place
        for module in package
        for place, node in functions(module)
        if num_parameters(node) > MOST_PARAMETERS and not is_command(node)
    ]


def uses_jax(module: Module) -> bool:
    """Return whether a module imports JAX or what stands on it."""
    for node in ast.walk(module.tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        if any(name.split(".")[0] in JAX_FAMILY for name in names):
            return True
    return False


def basic_modules(package: list[Module]) -> list[str]:
    """Return the modules of folders without JAX that are only checked in pyright's basic mode."""
    with_jax = {m.folder.split("/")[0] for m in package if uses_jax(m)}
    return [
        module.name
        for module in package
        if "# pyright: basic" in module.text and module.folder.split("/")[0] not in with_jax
    ]


def uses_of_any(package: list[Module]) -> int:
    """Return how often `Any` is written, imports apart."""
    return sum(
        isinstance(node, ast.Name) and node.id == "Any"
        for module in package
        for node in ast.walk(module.tree)
    )


def double_classes(package: list[Module]) -> list[str]:
    """Return the public class names that occur several times."""
    names = Counter(
        node.name
        for module in package
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, count in names.items() if count > 1)


def room_of(name: str) -> str:
    """Return the top folder of a module."""
    return name.split(".")[0]


def exported(package: list[Module]) -> dict[str, set[str]]:
    """Return for each module the names that other rooms import from it."""
    names = {module.name for module in package}
    found: dict[str, set[str]] = {}
    for module in package:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("meshwise."):
                base = (node.module or "").removeprefix("meshwise.")
                if base in names and room_of(base) != room_of(module.name):
                    found.setdefault(base, set()).update(alias.name for alias in node.names)
    return found


def untold(package: list[Module]) -> list[str]:
    """Return the exported functions that have parameters, but no `Args:` or `Returns:`."""
    wanted = exported(package)
    return [
        f"{module.name}.{node.name}"
        for module in package
        for node in module.tree.body
        if isinstance(node, Function)
        and node.name in wanted.get(module.name, ())
        and num_parameters(node)
        and not any(word in (ast.get_docstring(node) or "") for word in ("Args:", "Return"))
    ]


def identity_keys(package: list[Module]) -> list[str]:
    """Return the places where something is looked up by a bare `id(...)`."""
    found: list[str] = []
    for module in package:
        for node in ast.walk(module.tree):
            keys: list[ast.AST] = []
            if isinstance(node, ast.Subscript):
                keys = [node.slice]
            elif isinstance(node, ast.Compare):
                keys = [node.left]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                keys = list(node.args[:1]) if node.func.attr in ("get", "setdefault") else []
            found += [
                f"{module.name}:{key.lineno}"
                for key in keys
                if isinstance(key, ast.Call)
                and isinstance(key.func, ast.Name)
                and key.func.id == "id"
            ]
    return found


def figures(package: list[Module]) -> dict[str, int | list[str]]:
    """Return the figures of the table, by name."""
    files = Counter(module.folder for module in package if module.folder != ".")
    top = [m.name for m in package if m.folder == "." and m.name and m.name not in TOP]
    return {
        "lines of code without docstrings": sum(map(code_lines, package)),
        f"folders of more than {MOST_FILES} files": [
            f"{folder} ({count})" for folder, count in files.items() if count > MOST_FILES + 1
        ],
        "single modules at the top, beside five": top,
        "import circles": [" <-> ".join(group) for group in circles(package)],
        f"functions of more than {MOST_LINES} lines": long_functions(package),
        f"functions of more than {MOST_PARAMETERS} parameters": wide_functions(package),
        "`# pyright: basic` in rooms without JAX": basic_modules(package),
        "uses of `Any`": uses_of_any(package),
        "public class names that occur twice": double_classes(package),
        "exported functions that say neither Args nor Returns": untold(package),
        "look-ups by a bare `id(...)`": identity_keys(package),
    }


def table(columns: list[list[Module]]) -> str:
    """Return the figures of one or more packages as tables in Markdown."""
    every = [figures(package) for package in columns]
    lines = ["| | " + " | ".join(f"{n}" for n in ("now", "other")[: len(every)]) + " |"]
    lines += ["|---|" + "---:|" * len(every)]
    for name in every[0]:
        values = [f[name] for f in every]
        cells = [len(value) if isinstance(value, list) else value for value in values]
        lines.append(f"| {name} | " + " | ".join(f"{cell:,}" for cell in cells) + " |")
    lines += ["", "| folder | " + " | ".join(("lines", "other")[: len(every)]) + " |"]
    lines += ["|---|" + "---:|" * len(every)]
    sums = [Counter[str]() for _ in columns]
    for total, package in zip(sums, columns, strict=True):
        for module in package:
            total[module.folder] += code_lines(module)
    for folder in sorted(set().union(*sums)):
        cells = [f"{total[folder]:,}" if total[folder] else "" for total in sums]
        lines.append(f"| {folder} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the table, and with one package the places too."""
    columns = [modules(PACKAGE), *(modules(Path(other)) for other in sys.argv[1:])]
    print(table(columns))
    if len(columns) == 1:
        for name, value in figures(columns[0]).items():
            if isinstance(value, list) and value:
                print(f"{name}:", *(f"  {place}" for place in value), sep="\n")


if __name__ == "__main__":
    main()
