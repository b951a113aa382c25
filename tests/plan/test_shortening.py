"""Names made shorter, in tables and alone."""

from __future__ import annotations

import pytest

from meshwise.plan.text.columns import WIDTH, table
from meshwise.plan.text.shortening import shortened, told_apart

PLACE = "convert_element_type at attention/flash/block.py:81:62 (Transformer.__call__.attention)"


@pytest.mark.parametrize(
    ("width", "told"),
    [
        (len(PLACE), PLACE),
        (60, "convert_element_type at attention/flash/block.py:81:62"),
        (50, "convert_eleme... at attention/flash/block.py:81:62"),
        (40, "convert_element... at .../block.py:81:62"),
        (30, "convert... at ...lock.py:81:62"),
        (16, "...lock.py:81:62"),
    ],
)  # fmt: skip
def test_a_source_line_keeps_its_operator_its_file_and_its_line(width, told):
    assert shortened(PLACE, width) == told


@pytest.mark.parametrize(
    ("width", "told"),
    [
        (60, "0/2/0/mu/block_0/attention/key/kernel"),
        (36, "0/2/0/mu/.../attention/key/kernel"),
        (24, "0/2/0/mu/.../key/kernel"),
        (12, "0/.../kernel"),
        (8, "...ernel"),
        (3, "0/2"),
    ],
)
def test_a_path_loses_whole_keys_from_its_middle(width, told):
    assert shortened("0/2/0/mu/block_0/attention/key/kernel", width) == told


def test_shortened_texts_keep_to_their_width():
    texts = [PLACE, "0/2/0/mu/block_0/attention/key/kernel", "a" * 50, "x/" + "y" * 40, "a/b" * 20]
    for text in texts:
        for width in range(1, len(text) + 3):
            assert len(shortened(text, width)) <= width, (text, width)


def test_other_texts_keep_both_ends():
    assert shortened("abcdefghij", 10) == "abcdefghij"
    assert shortened("abcdefghijk", 9) == "abc...ijk"
    assert len(shortened("abcdefghijk", 8)) == 8


def test_two_texts_that_differ_in_their_middle_stay_different():
    first, second = (f"runs/{'a' * 30}-{kind}-{'b' * 30}/plan.json" for kind in ("old", "new"))
    assert shortened(first, 30) == shortened(second, 30)
    one, two = told_apart(first, second, (30, 30))
    assert "old" in one
    assert "new" in two
    assert max(map(len, (one, two))) <= 30
    assert told_apart(first, first, (30, 30)) == (shortened(first, 30),) * 2


def test_labels_of_a_table_differ_where_the_names_differ():
    names = [f"{'a' * 50}{kind}{'b' * 50}" for kind in ("old", "new")]
    lines = table(("name", "of", "x"), [(name, "y" * 20, "1") for name in names], "llr")
    assert max(map(len, lines)) <= WIDTH
    told = [line.split()[0] for line in lines[2:]]
    assert ["".join(told[:2]), "".join(told[2:])] == names
    alone = table(("name", "of", "x"), [(names[0], "y" * 20, "1")] * 2, "llr")
    assert len(alone) == 4
    assert alone[2] == alone[3]


def test_layouts_go_on_below_and_end_between_two_of_them():
    way = "P((x, y), -, -) P(-, (x, y), -) P(x, y, -) -> P((x, y), -, -) sum over z"
    lines = table(("operator", "way"), [("a" * 40, way)], "lw")
    told = [line[42:].strip() for line in lines[2:]]
    assert " ".join(told) == way
    assert all(line.count("(") == line.count(")") for line in told)


def test_names_of_columns_of_numbers_have_two_lines_where_there_is_no_room():
    header = ("of", "reduce-scatter", "all-gather", "all-to-all", "all-reduce", "memory")
    cells = ("convert_element_type at attention.py:52:17", *["12.3 ms"] * 5)
    lines = table(header, [cells], "lrrrrr")
    assert lines[0].split() == ["reduce-", "all-", "all-", "all-"]
    assert lines[1].split() == ["of", "scatter", "gather", "to-all", "reduce", "memory"]
    assert cells[0] in lines[3]


def test_texts_that_are_compared_are_whole_or_show_what_differs():
    short = [f"float32[2048,32,64] P({x}, -, -) x=2 y=4" for x in "xy"]
    long = [f"{'a' * 300}{x}{'b' * 300}" for x in "xy"]
    lines = table(("what", "a", "b"), [("0/w" * 12, *short), ("c", *long)], "lll", (1, 2))
    assert max(map(len, lines)) <= WIDTH
    halves = [line[lines[1].index("  -") :].split("  ") for line in lines[2:]]
    told = [" ".join(filter(None, map(str.strip, half))) for half in halves]
    assert "P(x, -, -)" in " ".join(told)
    assert "P(y, -, -)" in " ".join(told)
    assert "aaxbb" in told[-1]
    assert "aaybb" in told[-1]
