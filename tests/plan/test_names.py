"""Names that are told together."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from meshwise.plan.text.names import joined_names, numbers_text


def meant(text: str) -> list[str]:
    """All names for which a text with braces stands."""
    inner = re.search(r"\{([^{}]*)\}", text)
    if inner is None:
        return [text]
    found = []
    for item in inner[1].split(","):
        run = re.fullmatch(r"(\d+)-(\d+)(?: by (\d+))?", item)
        items = (
            [item]
            if run is None
            else map(str, range(int(run[1]), int(run[2]) + 1, int(run[3] or 1)))
        )
        found += [
            each for x in items for each in meant(text[: inner.start()] + x + text[inner.end() :])
        ]
    return found


def told(names: list[str]) -> list[str]:
    return [joined.text for joined in joined_names(names)]


def test_numbers_and_words_are_joined():
    names = [f"0/{b}/{k}/kernel" for b in ("block_0", "block_1") for k in ("key", "value")]
    assert told(names) == ["0/block_{0-1}/{key,value}/kernel"]
    assert joined_names(names)[0].members == (0, 1, 2, 3)


def test_moments_are_joined_with_their_parameters():
    roots = ("0/params", "0/opt/0/mu", "0/opt/0/nu")
    names = [f"{root}/block_{i}/up/kernel" for root in roots for i in range(3)]
    assert told(names) == ["{0/params,0/opt/0/{mu,nu}}/block_{0-2}/up/kernel"]


def test_the_number_of_an_argument_is_not_joined():
    assert told(["0/w", "1/w"]) == ["0/w", "1/w"]


def test_what_is_no_product_stays_apart():
    assert told(["a_0/x", "a_0/y", "a_1/x"]) == ["a_{0-1}/x", "a_0/y"]


def test_long_lists_of_words_are_several_rows():
    names = [chr(97 + i) * 10 for i in range(20)]
    rows = told(names)
    assert len(rows) > 1
    assert max(map(len, rows)) <= 72
    assert sorted(itertools.chain.from_iterable(map(meant, rows))) == names


@pytest.mark.parametrize("seed", range(30))
def test_a_text_stands_for_its_names_and_no_others(seed):
    r = random.Random(seed)
    keys = ["params", "opt/0/mu", "opt/0/nu", "block_", "x.y", "kernel", "b1as", "0", "07"]
    names = [
        "/".join(
            [str(r.randrange(2))]
            + [
                key + str(r.randrange(5)) * (key == "block_")
                for key in r.choices(keys, k=r.randrange(1, 5))
            ]
        )
        for _ in range(60)
    ]
    rows = joined_names(names)
    assert sorted(m for row in rows for m in row.members) == list(range(60))
    for row in rows:
        assert set(meant(row.text)) == {names[member] for member in row.members}
    texts = [row.text for row in rows]
    assert len(set(texts)) == len(texts)


def test_runs_and_equal_distances_of_numbers():
    assert numbers_text([3, 1, 2, 7]) == "1-3, 7"
    assert numbers_text(range(0, 47, 2)) == "0-46 by 2"
    assert numbers_text([0, 2, 4]) == "0, 2, 4"
    assert numbers_text([5]) == "5"
