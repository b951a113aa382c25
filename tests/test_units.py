"""How numbers are printed."""

import pytest

from meshwise.units import MIB, bytes_unit, counted, plural, range_text


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


@pytest.mark.parametrize(
    ("num_bytes", "unit"),
    [(0.5, (1, "B")), (1024, (1024, "KiB")), (9 * MIB, (MIB, "MiB")), (2**60, (2**40, "TiB"))],
)
def test_unit_of_bytes(num_bytes: float, unit: tuple[int, str]) -> None:
    assert bytes_unit(num_bytes) == unit


def test_a_range_of_one_number_is_that_number() -> None:
    assert (range_text(0, 3), range_text(2, 2)) == ("0-3", "2")
