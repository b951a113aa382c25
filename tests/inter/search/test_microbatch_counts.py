"""Which numbers of micro-batches are searched together, and whose bounds serve which."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.inter.search.microbatch_counts import Group, bounds_of, groups, most_stages
from meshwise.inter.search.search_space import SearchOptions


def test_groups_go_from_a_middle_value_upwards_and_then_down() -> None:
    options = SearchOptions(batch_size=1024, step_flop=1.0)
    first, *fewer = groups(options, 64)
    assert first.counts == first.sharing == [256, 512, 1024, 128]
    assert [group.counts for group in fewer] == [[64], [32], [16], [8], [4], [2], [1]]
    assert [group.sharing for group in fewer] == [
        *([64, 32],) * 2,
        *([16, 8],) * 2,
        *([4, 2],) * 2,
        [1],
    ]


def test_many_devices_have_no_more_stages_than_layers() -> None:
    assert most_stages(1024, 50) == 1024
    assert most_stages(16384, 50) == 50
    options = SearchOptions(batch_size=8192, step_flop=1.0)
    first, second, *_ = groups(options, most_stages(16384, 63))
    assert first.counts == [256, 512, 1024, 2048, 4096, 8192, 128]
    assert second == Group([64], [64, 32])


def test_what_is_asked_for_is_one_group() -> None:
    options = SearchOptions(batch_size=1024, step_flop=1.0, num_microbatches=(4, 64))
    assert groups(options, 64) == [Group([4, 64], [4, 64])]


@given(st.integers(1, 4096), st.integers(1, 512))
def test_every_number_is_in_one_group_and_its_bounds_divide_it(batch: int, devices: int) -> None:
    found = groups(SearchOptions(batch_size=batch, step_flop=1.0), devices)
    flat = [count for group in found for count in group.counts]
    assert len(set(flat)) == len(flat)
    for counts, sharing in found:
        for count in counts:
            base = bounds_of(count, sharing)
            assert count in sharing
            assert count % base == 0
            assert 2 * base >= min(sharing)


@pytest.mark.parametrize(
    ("counts", "base"),
    [([304, 380, 760, 1520, 152], 76), ([256, 512, 768], 256), ([7, 14, 15], 7)],
)
def test_one_number_serves_all_where_it_is_close(counts: list[int], base: int) -> None:
    assert bounds_of(counts[1], counts) == base
