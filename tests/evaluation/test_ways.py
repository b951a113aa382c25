"""Seconds by each way to send are those of that way alone."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from evaluation.paper import ways
from evaluation.transfers.ways import SIGNAL, WAYS

from doubles.pipelines import pipeline
from meshwise.cluster.submesh import SubmeshKind
from meshwise.graph.layout import Layout
from meshwise.resharding.between import Passing


def test_a_way_does_not_send_as_the_plan_does_too(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = pipeline(2, 4, "4x p3.8xlarge")
    first, last = plan.stages
    assert plan.cluster is not None
    kind = SubmeshKind(host=plan.cluster.host_at(0), num_hosts=2, devices_per_host=4)
    whole = Layout(dims=((), ()))
    run = SimpleNamespace(enters=whole, leaves=whole)
    monkeypatch.setattr(ways, "stage_plan", lambda *_: run)
    spans = [SimpleNamespace(submesh=0)] * 2
    found: Any = SimpleNamespace(kinds=[kind], plan=SimpleNamespace(stages=spans))
    costs: Any = None
    passing = Passing(sent=1.0, received=1.0)
    stages = (replace(first, backward_passing=passing), replace(last, forward_passing=passing))
    planned = replace(plan, transfers="broadcast", stages=stages)
    seconds = dict(ways.seconds_by_way(planned, found, costs))
    assert seconds == dict(ways.seconds_by_way(plan, found, costs))
    assert set(seconds) == set(WAYS)
    assert min(seconds.values()) == seconds[SIGNAL]
