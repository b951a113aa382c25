"""Whether stages could be cut at all: the short way says what the search says."""

from __future__ import annotations

import itertools

import pytest

import meshwise as mw
from meshwise.inter.search import pin_conflicts
from meshwise.inter.search.search_space import SearchOptions
from meshwise.intra.limit.refusal import NoSuchPlanError
from meshwise.schedules.interleaved import Interleaved
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.schedules.zero_bubble_v import ZERO_BUBBLE_V

ONE_HOST, THREE, MIXED = (
    mw.Cluster.virtual(text)
    for text in ("1x p3.8xlarge", "3x p3.8xlarge", "1x p3.8xlarge + 1x p4d.24xlarge")
)


@pytest.mark.parametrize("cluster", [ONE_HOST, THREE, MIXED], ids=["one", "three", "mixed"])
def test_one_stage_is_seen_only_where_the_search_finds_stages(
    cluster: mw.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_accepted(num_layers: int, options: SearchOptions) -> bool:
        try:
            pin_conflicts.check_stages(cluster, options, num_layers)
        except NoSuchPlanError:
            return False
        return True

    schedules = (ONE_F_ONE_B, Interleaved(chunks=2), ZERO_BUBBLE_V)
    accepted: list[bool] = []
    for schedule, num_layers, num_stages in itertools.product(schedules, (1, 2, 3), (None, 1, 2)):
        options = SearchOptions(
            batch_size=8,
            step_flop=1e12,
            num_microbatches=(2,),
            schedules=(schedule,),
            num_stages=num_stages,
        )
        found = is_accepted(num_layers, options)
        with monkeypatch.context() as patch:
            patch.setattr(pin_conflicts, "_has_one_stage", lambda *_: False)
            assert is_accepted(num_layers, options) == found
        accepted.append(found)
    assert {True, False} == set(accepted)
