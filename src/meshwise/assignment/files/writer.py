"""Writes a problem in the JSON form of the ASPLOS 2025 contest, compressed if the name says so."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from meshwise.assignment.instance import Instance
from meshwise.errors import SolverError
from meshwise.kernels.arrays import Ints


def write_instance(instance: Instance, path: Path, **notes: object) -> None:
    """Write a file that `read_instance` reads back; list by list, for some have gigabytes.

    Args:
        instance: The problem.
        path: The file; one that ends in `.gz` is compressed.
        notes: Further members of the problem, which readers skip.

    Raises:
        SolverError: the file cannot be written.
    """
    try:
        if path.suffix == ".gz":
            # No time stamp: equal problems make equal files.
            with gzip.GzipFile(path, "wb", compresslevel=1, mtime=0) as file:
                _write(instance, notes, lambda text: file.write(text.encode()))
        else:
            with path.open("w") as file:
                _write(instance, notes, file.write)
    except OSError as error:
        raise SolverError(f"{path}: cannot be written: {error.strerror or error}") from error


def _write(instance: Instance, notes: dict[str, object], write: Callable[[str], object]) -> None:
    write('{"problem": {"name": ' + json.dumps(instance.name))
    for key, value in notes.items():
        write(f", {json.dumps(key)}: {json.dumps(value)}")
    write(',\n"nodes": {"intervals": ' + json.dumps(instance.intervals.tolist()))
    _rows("costs", instance.costs, instance.first_choice, write)
    _rows("usages", instance.usages, instance.first_choice, write)
    write('},\n"edges": {"nodes": ' + json.dumps(instance.edges.tolist()))
    _rows("costs", instance.edge_costs, instance.first_entry, write)
    write("}")
    if instance.limit is not None:
        write(f',\n"usage_limit": {instance.limit}')
    write("}}\n")


def _rows(name: str, values: Ints, first: Ints, write: Callable[[str], object]) -> None:
    write(f',\n"{name}": [')
    for number, row in enumerate(_split(values, first)):
        write((",\n" if number else "") + json.dumps(row))
    write("]")


def _split(values: Ints, first: Ints) -> Iterator[list[int]]:
    for low, high in itertools.pairwise(first.tolist()):
        yield values[low:high].tolist()
