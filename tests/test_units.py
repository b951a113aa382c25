"""How numbers are printed."""

import pytest

from meshwise.units import counted, plural


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "host", "1 host"),
        (0, "stage", "0 stages"),
        (1, "micro-batch", "1 micro-batch"),
        (4, "micro-batch", "4 micro-batches"),
        (2, "mesh", "2 meshes"),
        (3, "process", "3 processes"),
    ],
)
def test_a_noun_follows_its_number(count: int, noun: str, text: str) -> None:
    assert counted(count, noun) == text
    assert f"{count} {plural(count, noun)}" == text
