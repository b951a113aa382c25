"""Reads a problem in the JSON form of the ASPLOS 2025 contest, plain or compressed."""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from array import array
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np

from meshwise.assignment.files.json_stream import JsonStream, opened
from meshwise.assignment.instance import INFINITE_COST, Instance
from meshwise.errors import SolverError
from meshwise.kernels.arrays import Ints

# Sums of usage must stay within 64 bits.
_MOST_USAGE = 2**62
# Numbers of a file, and lists, which take as much memory as several numbers: the solver needs up to
# 50 bytes a number, so that this many take 10 GiB.
_MOST_NUMBERS = 200_000_000
_NUMBERS_A_LIST = 8
_OBJECTS = ("problem", "problem.nodes", "problem.edges")
# A list in which anything may stand.
Row: TypeAlias = list[object]
_TABLES = (
    "problem.nodes.intervals",
    "problem.nodes.costs",
    "problem.nodes.usages",
    "problem.edges.nodes",
    "problem.edges.costs",
)
_KEPT = (*_OBJECTS, *_TABLES, "problem.name", "problem.usage_limit")


def read_instance(
    path: Path, *, deadline: float | None = None, most_numbers: int = _MOST_NUMBERS
) -> Instance:
    """Read a file.

    Args:
        path: The file.
        deadline: Moment of `time.monotonic`, in seconds; None to read however long it takes.
        most_numbers: Larger files are refused before they fill the memory.

    Raises:
        SolverError: it cannot be read, is too large, is no JSON, or is no problem; the message
            names the field.
        OutOfTimeError: the deadline passed before all was read.
    """
    reader = _Reader(str(path), most_numbers)
    try:
        with opened(path) as file:
            document = _document(JsonStream(file, deadline), reader)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SolverError(f"{path}: the compressed file is damaged: {error}") from error
    except OSError as error:
        raise SolverError(f"{path}: cannot be read: {error.strerror or error}") from error
    except RecursionError as error:
        raise SolverError(f"{path}: JSON nested too deeply to be a problem") from error
    except ValueError as error:
        raise SolverError(f"{path}: is not JSON: {error}") from error
    return reader.instance(document)


def _document(stream: JsonStream, reader: _Reader) -> object:
    """Read the document, its lists of lists as tables."""

    def value(where: str) -> object:
        if where in _TABLES and stream.next() == "[":
            table = _Table(where)
            stream.rows(lambda rows: reader.extend(table, rows))
            return table
        if where not in ("", *_OBJECTS) or stream.next() != "{":
            return stream.value()
        found: dict[str, object] = {}

        def member(key: str) -> None:
            if key in found:
                raise ValueError(f"key {key[:60]!r} stands twice")
            name = f"{where}.{key}" if where else key
            read = value(name)
            # What nobody asks for is not kept.
            found[key] = read if name in _KEPT else None

        stream.members(member)
        return found

    document = value("")
    stream.end()
    return document


class _Table:
    """A list of lists of whole numbers, joined, and the length of each."""

    def __init__(self, field: str) -> None:
        self.field = field
        self.values = array("q")
        self.lengths = array("q")

    def joined(self) -> tuple[Ints, Ints]:
        """Return the numbers, and where each list begins; one entry more."""
        first = np.zeros(len(self.lengths) + 1, np.int64)
        np.cumsum(np.frombuffer(self.lengths, np.int64), out=first[1:])
        return np.frombuffer(self.values, np.int64), first


class _Reader:
    def __init__(self, source: str, most_numbers: int) -> None:
        self.source = source
        self.most_numbers = most_numbers
        self.num_numbers = 0

    def wrong(self, field: str, what: str) -> SolverError:
        return SolverError(f"{self.source}: {field} {what}")

    def instance(self, document: object) -> Instance:
        problem = cast("dict[str, object]", self.member(document, "", "problem"))
        nodes = self.member(problem, "problem", "nodes")
        edges = self.member(problem, "problem", "edges")
        costs, first_choice = self.table(nodes, "problem.nodes", "costs")
        usages, first_usage = self.table(nodes, "problem.nodes", "usages")
        intervals = self.table(nodes, "problem.nodes", "intervals")[0].reshape(-1, 2)
        ends = self.table(edges, "problem.edges", "nodes")[0].reshape(-1, 2)
        edge_costs, first_entry = self.table(edges, "problem.edges", "costs")
        sizes, count = np.diff(first_choice), len(first_choice) - 1
        for name, found in (("usages", len(first_usage) - 1), ("intervals", len(intervals))):
            if found != count:
                raise self.wrong(f"problem.nodes.{name}", f"has {found} entries for {count} nodes")
        self.match(sizes, np.diff(first_usage), "problem.nodes.usages", "usages", "choices")
        if len(first_entry) - 1 != len(ends):
            many = f"has {len(first_entry) - 1} entries for {len(ends)} edges"
            raise self.wrong("problem.edges.costs", many)
        self.check_ends(ends, count)
        want = sizes[ends[:, 0]] * sizes[ends[:, 1]]
        self.match(want, np.diff(first_entry), "problem.edges.costs", "costs", "pairs of choices")
        self.check_signs(costs, first_choice, "problem.nodes.costs")
        self.check_signs(usages, first_choice, "problem.nodes.usages")
        self.check_signs(edge_costs, first_entry, "problem.edges.costs")
        if float(usages.astype(np.float64).sum()) >= _MOST_USAGE:
            raise self.wrong("problem.nodes.usages", "add up to more than 2^62 bytes")
        return Instance(
            name=str(problem.get("name", "")),
            first_choice=first_choice,
            costs=np.minimum(costs, INFINITE_COST),
            usages=usages,
            intervals=intervals,
            edges=ends,
            first_entry=first_entry,
            edge_costs=np.minimum(edge_costs, INFINITE_COST),
            limit=self.limit(problem),
        )

    def member(self, parent: object, where: str, name: str) -> object:
        field = f"{where}.{name}" if where else name
        if not isinstance(parent, dict):
            raise self.wrong(where or "the file", f"must be an object, is {_described(parent)}")
        members = cast("dict[str, object]", parent)
        if name not in members:
            raise self.wrong(field, "is missing")
        return members[name]

    def table(self, parent: object, where: str, name: str) -> tuple[Ints, Ints]:
        """Return a list of lists of whole numbers, joined, and where each begins."""
        value, field = self.member(parent, where, name), f"{where}.{name}"
        if not isinstance(value, _Table):
            raise self.wrong(field, f"must be a list, is {_described(value)}")
        return value.joined()

    def extend(self, table: _Table, rows: list[object]) -> None:
        """Add lists to a table."""
        count, field = len(table.lengths), table.field
        is_of_pairs = field.endswith((".nodes", ".intervals"))
        for k, row in enumerate(rows, count):
            length = len(cast("Row", row)) if isinstance(row, list) else -1
            if length < 0 or (is_of_pairs and length != 2):
                what = "two numbers" if is_of_pairs else "a list"
                raise self.wrong(
                    f"{field}[{k}]", f"must be {what}, is {_described(rows[k - count])}"
                )
        lists = cast("list[Row]", rows)
        table.lengths.extend(map(len, lists))
        values = self.integers(lists, field, count)
        table.values.frombytes(values.tobytes())
        self.num_numbers += len(values) + _NUMBERS_A_LIST * len(rows)
        if self.num_numbers > self.most_numbers:
            raise SolverError(
                f"{self.source}: too large: more than {self.most_numbers:,} numbers (a list counts "
                f"as {_NUMBERS_A_LIST}) would need more than 12 GiB of memory; leave out "
                f"strategies, or solve parts of the problem; {field} has {len(table.lengths):,} "
                f"lists so far"
            )

    def integers(self, rows: list[Row], field: str, first: int) -> Ints:
        """Return the numbers, joined; `first` is the number of the first list."""
        each = itertools.chain.from_iterable
        count = sum(map(len, rows))
        # A sum of bools is an int, but type() tells them apart; checking kinds at once is fast.
        if set(map(type, each(rows))) <= {int}:
            try:
                return np.fromiter(each(rows), np.int64, count)
            except OverflowError:
                pass
        for k, row in enumerate(rows, first):
            for j, value in enumerate(row):
                number = _whole_number(value)
                if number is None:
                    raise self.wrong(
                        f"{field}[{k}][{j}]", f"must be a whole number, is {_described(value)}"
                    )
                if number < -(2**63):
                    raise self.wrong(f"{field}[{k}][{j}]", f"is out of range: {value}")
        whole = cast("list[list[int | float]]", rows)
        # Larger than 64 bits is infinite anyway.
        return np.fromiter((min(int(v), 2**63 - 1) for v in each(whole)), np.int64, count)

    def match(self, want: Ints, found: Ints, field: str, what: str, of: str) -> None:
        wrong = np.flatnonzero(want != found)
        if len(wrong):
            k = int(wrong[0])
            raise self.wrong(f"{field}[{k}]", f"has {found[k]} {what} for {want[k]} {of}")

    def check_ends(self, ends: Ints, count: int) -> None:
        outside = np.flatnonzero(((ends < 0) | (ends >= count)).any(axis=1))
        if len(outside):
            k = int(outside[0])
            pair = ends[k].tolist()
            raise self.wrong(f"problem.edges.nodes[{k}]", f"is {pair}; there are {count} nodes")
        loops = np.flatnonzero(ends[:, 0] == ends[:, 1])
        if len(loops):
            k = int(loops[0])
            raise self.wrong(f"problem.edges.nodes[{k}]", f"joins node {ends[k, 0]} with itself")

    def check_signs(self, values: Ints, first: Ints, field: str) -> None:
        negative = np.flatnonzero(values < 0)
        if len(negative):
            at = int(negative[0])
            k = int(np.searchsorted(first, at, side="right")) - 1
            raise self.wrong(f"{field}[{k}][{at - first[k]}]", f"is negative: {values[at]}")

    def limit(self, problem: dict[str, object]) -> int | None:
        value = problem.get("usage_limit")
        if value is None:
            return None
        limit = _whole_number(value)
        if limit is None or limit < 0:
            raise self.wrong(
                "problem.usage_limit", f"must be a whole number of bytes, is {_described(value)}"
            )
        # No sum of usages reaches this.
        return min(limit, _MOST_USAGE)


def _whole_number(value: object) -> int | None:
    """Return the value as a whole number; None if it is none, as a truth value is not."""
    if type(value) is int or (type(value) is float and value.is_integer()):
        return int(value)
    return None


def _described(value: object) -> str:
    for kind, name in ((list, "a list"), (dict, "an object")):
        if isinstance(value, kind):
            return name
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
