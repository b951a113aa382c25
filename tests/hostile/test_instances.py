"""Problems of the contest's form from others: refused with the file, or solved as they are."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hostile.bounds import bounded
from hostile.mutations import bomb, damaged, documents, json_of, packed
from hostile.searches import COUNTS, check_error, search
from hostile.valid import INSTANCE, INSTANCE_FILE
from meshwise.assignment.files.reader import read_instance
from meshwise.assignment.files.writer import write_instance
from meshwise.assignment.instance import evaluate
from meshwise.assignment.instance_solver import solve_instance
from meshwise.errors import SolverError


def check_instance(path: Path) -> Callable[[bytes], None]:
    """Return the check of a file, which is written there."""

    def check(data: bytes) -> None:
        path.write_bytes(data)
        with bounded():
            try:
                instance = read_instance(path)
            except SolverError as error:
                return check_error(error, path)
            write_instance(instance, path)
            again = read_instance(path)
            for name in ("costs", "usages", "intervals", "edges", "edge_costs", "first_entry"):
                assert np.array_equal(getattr(again, name), getattr(instance, name))
            assert again.limit == instance.limit
            answer = solve_instance(instance, time_limit_s=1.0)
            if answer.choice is not None:
                found = evaluate(instance, answer.choice)
                assert (found.cost, found.peak) == (answer.cost, answer.peak)

    return check


@pytest.mark.usefixtures("compiled_kernels")
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("pack", [bytes, packed], ids=["plain", "gzip"])
def test_instances_with_other_values(
    pack: Callable[[bytes], bytes], count: int, tmp_path: Path
) -> None:
    files = documents([INSTANCE], lambda document: pack(json_of(document)))
    search(files, check_instance(tmp_path / "i.json"), count)


@pytest.mark.usefixtures("compiled_kernels")
@pytest.mark.parametrize("count", COUNTS)
def test_instances_with_other_bytes(count: int, tmp_path: Path) -> None:
    files = damaged([INSTANCE_FILE, packed(INSTANCE_FILE)])
    search(files, check_instance(tmp_path / "i.json"), count)


START = b'{"problem": {"nodes": {"costs": ['
# Found by search or by thought: each hung, or took gigabytes.
CASES: dict[str, tuple[bytes | Callable[[], bytes], str]] = {
    "spaces without end": (
        lambda: bomb(b"{", b" ", 2**27),
        "the compressed file is damaged: it unpacks to more than 256 times its size",
    ),
    "lists of lists without end": (
        lambda: bomb(START + b"[1],[[],", b"[],", 2**26),
        "Value of more than 8 MiB",
    ),
    "a value that nobody asks for": (
        lambda: bomb(b'{"x": [', b'"yy",', 2**26),
        "Value of more than 8 MiB",
    ),
    "many values that nobody asks for": (
        b"{" + b",".join(b'"%d": "%s"' % (n, b"yyyy" * 2**20) for n in range(9)) + b"}",
        "More than 32 MiB that are no costs or usages",
    ),
    "a list of numbers without end": (
        lambda: bomb(START + b"[", b"999,", 2**26),
        "List of more than 32 MiB",
    ),
    "a text without end": (lambda: bomb(b'{"x": "', b"yyyy", 2**26), "Value of more than 8 MiB"),
    "a number without end": (lambda: bomb(START + b"[", b"9", 2**28), "List of more than 32 MiB"),
    "a key that stands twice": (
        json_of({"problem": INSTANCE["problem"] | {"\x02nodes": []}}),
        "key 'nodes' stands twice",
    ),
    "nested without end": (b"[" * 10**6, "nested too deeply"),
    "half of it": (packed(INSTANCE_FILE)[:-20], "the compressed file is damaged"),
}


@pytest.mark.parametrize("name", CASES)
def test_instances_that_are_refused(name: str, tmp_path: Path) -> None:
    data, message = CASES[name]
    path = tmp_path / "i.json.gz"
    path.write_bytes(data() if callable(data) else data)
    with bounded(), pytest.raises(SolverError) as caught:
        read_instance(path)
    check_error(caught.value, path)
    assert message in str(caught.value)


def test_a_piece_may_end_between_the_last_two_brackets(tmp_path: Path) -> None:
    path = tmp_path / "i.json"
    text = json_of(INSTANCE).decode()
    # The first piece is 4 MiB; spaces stand before the lists.
    end = text.index("]]") + 1
    path.write_text(text[0] + " " * (2**22 - end) + text[1:])
    assert read_instance(path).num_nodes == 3


def test_zeros_may_be_packed_tightly(tmp_path: Path) -> None:
    """What `write_instance` packs is read, however equal its numbers are."""
    count, size = 10, 400
    nodes = {
        "intervals": [[0, 1]] * count,
        "costs": [[0] * size] * count,
        "usages": [[0] * size] * count,
    }
    edges = {"nodes": [[n, n + 1] for n in range(9)], "costs": [[0] * size**2] * 9}
    path = tmp_path / "i.json.gz"
    path.write_bytes(gzip.compress(json_of({"problem": {"nodes": nodes, "edges": edges}}), 1))
    instance = read_instance(path)
    write_instance(instance, path)
    assert read_instance(path).num_nodes == count
