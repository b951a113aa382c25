"""Keeps the problems of the planner as files that `meshwise solve` reads."""

from __future__ import annotations

import itertools
from pathlib import Path

from meshwise.errors import SolverError
from meshwise.intra.encode import encode
from meshwise.intra.problem import Problem
from meshwise.intra.solver.write import write_instance


def dump_problem(problem: Problem, folder: Path, what: str) -> Path:
    """Write a problem into a folder, which is made if need be; nothing there is overwritten.

    Args:
        problem: Costs in seconds, rows in bytes.
        folder: Where.
        what: Part of the file's name and the name of the instance.

    Returns:
        The file, numbered in the order of writing.

    Raises:
        SolverError: it cannot be written.
    """
    encoded = encode(problem, name=what)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            path = folder / f"{number:03}-{what}.json.gz"
            if any(folder.glob(f"{number:03}-*")):
                continue
            path.touch(exist_ok=False)
            break
        else:
            raise AssertionError
    except FileExistsError:
        return dump_problem(problem, folder, what)
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
