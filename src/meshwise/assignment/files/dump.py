"""Keeps the problems of the planner as files that `meshwise solve` reads."""

from __future__ import annotations

import re
from pathlib import Path

from meshwise.assignment.encoding import encode
from meshwise.assignment.files.writer import write_instance
from meshwise.assignment.problem import Problem
from meshwise.errors import SolverError


def dump_problem(problem: Problem, cost: float | None, folder: Path, what: str) -> Path:
    """Write a problem into a folder, which is made if need be; nothing there is overwritten.

    Args:
        problem: Costs in seconds, rows in bytes.
        cost: Cost of a solution, which makes the unit of costs finer; None if none is known.
        folder: Folder of the file.
        what: Part of the file's name, and the name of the instance.

    Returns:
        The file, numbered in the order of writing.

    Raises:
        SolverError: it cannot be written.
    """
    encoded = encode(problem, reference=cost, name=what)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = _new_file(folder, what)
    except OSError as error:
        raise SolverError(f"{folder}: cannot be written to: {error.strerror or error}") from error
    write_instance(
        encoded.instance,
        path,
        cost_unit_s=encoded.unit,
        cost_constant_s=encoded.constant,
        planner_nodes=encoded.num_nodes,
    )
    return path


def _new_file(folder: Path, what: str) -> Path:
    """Return an empty file with a number that no file has yet."""
    used = {int(m[0]) for f in folder.iterdir() if (m := re.match("[0-9]+(?=-)", f.name))}
    number = 0
    while True:
        number += 1
        path = folder / f"{number:03}-{what}.json.gz"
        if number in used:
            continue
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            # Another writer was quicker.
            continue
        return path
