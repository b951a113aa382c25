"""Problems from files: what is read, and which field an error names."""

from __future__ import annotations

import copy
import gzip
import json

import numpy as np
import pytest

from assignment.problems import parse_instance, random_document, random_instance
from meshwise.assignment.files.json_stream import OutOfTimeError
from meshwise.assignment.files.reader import read_instance
from meshwise.assignment.instance import INFINITE_COST, evaluate
from meshwise.errors import SolverError

SMALL = {
    "problem": {
        "name": "small",
        "nodes": {
            "intervals": [[0, 2], [1, 3]],
            "costs": [[1, 2], [3, 4, 5]],
            "usages": [[10, 0], [7, 5, 1]],
        },
        "edges": {"nodes": [[0, 1]], "costs": [[0, 1, 2, 3, 4, 5]]},
        "usage_limit": 12,
    }
}


def test_plain_and_compressed_files_are_the_same(tmp_path):
    text = json.dumps(random_document(5)).encode()
    plain, packed = tmp_path / "a.json", tmp_path / "a.json.gz"
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text))
    first = [0] * 6
    assert evaluate(read_instance(plain), first) == evaluate(read_instance(packed), first)
    assert evaluate(read_instance(plain), first) == evaluate(random_instance(5), first)


def test_costs_and_peaks_are_those_of_the_definition():
    instance = parse_instance(SMALL, "small")
    found = evaluate(instance, [1, 2])
    # Node 1 + node 2 + entry (1, 2) of the edge; both are live at time 1.
    assert found.cost == 2 + 5 + 5
    assert found.peak == 0 + 1
    assert evaluate(instance, [0, 1]).peak == 15


def test_a_choice_that_is_none_is_refused():
    instance = parse_instance(SMALL, "small")
    with pytest.raises(ValueError, match="node 0 has 2 choices, not a choice 2"):
        evaluate(instance, [2, 0])
    with pytest.raises(ValueError, match="1 choices for 2 nodes"):
        evaluate(instance, [0])


def test_numbers_beyond_64_bits_are_infinite():
    document = copy.deepcopy(SMALL)
    document["problem"]["edges"]["costs"][0][3] = 10**30
    instance = parse_instance(document, "x")
    assert instance.edge_costs[3] == INFINITE_COST
    assert evaluate(instance, [1, 0]).cost is None


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_files_longer_than_a_piece_are_read_whole(tmp_path, suffix):
    """Lists, numbers and words that go on in the next piece."""
    rng = np.random.default_rng(0)
    count = 700
    rows = [rng.integers(0, 10**9, 100).tolist() for _ in range(count)]
    matrices = [rng.integers(0, 10**5, 10_000).tolist() for _ in range(100)]
    nodes = {"intervals": [[0, 1]] * count, "costs": rows, "usages": rows}
    edges = {"nodes": [[k, k + 1] for k in range(100)], "costs": matrices}
    document = {"problem": {"note": "x" * 6_000_000, "nodes": nodes, "edges": edges}}
    document["problem"]["usage_limit"] = 10**15
    text = json.dumps(document, indent=1).encode()
    path = tmp_path / f"a{suffix}"
    path.write_bytes(gzip.compress(text, 1) if suffix.endswith("gz") else text)
    found = read_instance(path)
    assert found.limit == 10**15
    assert np.array_equal(found.first_choice, 100 * np.arange(count + 1))
    assert found.intervals.tolist() == nodes["intervals"]
    assert found.edges.tolist() == edges["nodes"]
    for numbers, want in ((found.costs, rows), (found.usages, rows), (found.edge_costs, matrices)):
        assert np.array_equal(numbers, np.concatenate(want))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"nodes": {"costs": [1, 2], "usages": [[1]]}', "problem.nodes.costs[0] must be a list"),
        ('"nodes": {"costs": [["]]"]]}', 'costs[0][0] must be a whole number, is "]]"'),
        ('"nodes": {"costs": [[[1]]]}', "costs[0][0] must be a whole number, is a list"),
        ('"nodes": {"costs": [[1], 2]}', "problem.nodes.costs[1] must be a list, is 2"),
        ('"nodes": {"costs": [[1,]]}', "x.json: is not JSON: "),
        ('"nodes": {"costs": [[1] [2]]}', "is not JSON: Expecting ',' delimiter (character "),
        ('"nodes": {"costs": [[1]', "is not JSON: Expecting ',' or ']' (character 36)"),
        ('"nodes": 3, "nodes": []', "key 'nodes' stands twice"),
        ('"nodes": []', "problem.nodes must be an object, is a list"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(text, message, tmp_path):
    path = tmp_path / "x.json"
    end = "" if text.endswith("[[1]") else ', "edges": {}}}'
    path.write_text('{"problem": {' + text + end)
    with pytest.raises(SolverError) as caught:
        read_instance(path)
    assert message in str(caught.value)


def test_files_that_would_fill_the_memory_are_refused(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(SMALL))
    with pytest.raises(SolverError, match="too large: more than 20 numbers .* 12 GiB .* leave out"):
        read_instance(path, most_numbers=20)


def test_reading_ends_at_the_deadline(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(SMALL))
    with pytest.raises(OutOfTimeError):
        read_instance(path, deadline=0.0)


def _at(path, value):
    """The small problem with one field set, or taken out if the value is `...`."""
    document = copy.deepcopy(SMALL)
    place = document
    for key in path[:-1]:
        place = place[key]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["problem"], ..., "problem is missing"),
        (["problem"], 3, "problem must be an object, is 3"),
        (["problem", "nodes"], ..., "problem.nodes is missing"),
        (["problem", "edges"], [], "problem.edges must be an object, is a list"),
        (["problem", "nodes", "costs"], {}, "problem.nodes.costs must be a list, is an object"),
        (["problem", "nodes", "costs", 1], 7, "problem.nodes.costs[1] must be a list, is 7"),
        (
            ["problem", "nodes", "costs", 1, 2],
            "x",
            'problem.nodes.costs[1][2] must be a whole number, is "x"',
        ),
        (
            ["problem", "nodes", "costs", 1, 2],
            float("nan"),
            "problem.nodes.costs[1][2] must be a whole number, is NaN",
        ),
        (
            ["problem", "nodes", "costs", 1, 2],
            True,
            "problem.nodes.costs[1][2] must be a whole number, is true",
        ),
        (["problem", "nodes", "costs", 0, 1], -4, "problem.nodes.costs[0][1] is negative: -4"),
        (["problem", "nodes", "usages", 1, 0], -1, "problem.nodes.usages[1][0] is negative: -1"),
        (["problem", "nodes", "usages", 1], [1], "problem.nodes.usages[1] has 1 usages for 3"),
        (["problem", "nodes", "usages"], [[1, 2]], "problem.nodes.usages has 1 entries for 2"),
        (["problem", "nodes", "usages", 1, 0], 2**62, "problem.nodes.usages add up to more than"),
        (["problem", "nodes", "intervals", 0], [1], "problem.nodes.intervals[0] must be two"),
        (["problem", "nodes", "intervals"], [], "problem.nodes.intervals has 0 entries for 2"),
        (["problem", "edges", "nodes", 0], [0, 2], "problem.edges.nodes[0] is [0, 2]; there are 2"),
        (["problem", "edges", "nodes", 0], [1, 1], "problem.edges.nodes[0] joins node 1 with"),
        (["problem", "edges", "costs", 0], [1], "problem.edges.costs[0] has 1 costs for 6 pairs"),
        (["problem", "edges", "costs"], [], "problem.edges.costs has 0 entries for 1 edges"),
        (
            ["problem", "usage_limit"],
            "1G",
            'problem.usage_limit must be a whole number of bytes, is "1G"',
        ),
        (["problem", "usage_limit"], -1, "problem.usage_limit must be a whole number of bytes"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(path, value, message):
    with pytest.raises(SolverError) as caught:
        parse_instance(_at(path, value), "file.json")
    assert f"file.json: {message}" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "is not JSON"),
        (b"\x1f\x8b\x08nonsense", "the compressed file is damaged"),
        (gzip.compress(b'{"problem": {}}', mtime=0)[:-9], "the compressed file is damaged"),
        (b"[" * 100_000, "nested too deeply"),
        (b"\xff\xfe{", "is not JSON"),
        (None, "cannot be read"),
    ],
)
def test_files_that_are_no_problem(content, reason, tmp_path):
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SolverError, match=reason):
        read_instance(path)
