"""Bounds from another process are those of this one, and nothing is left of it."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

import meshwise as mw
from inter.test_compose import layers_of_model
from meshwise.inter import second_process
from meshwise.inter.second_process import Ask, SecondProcess
from meshwise.inter.variants import VariantCosts
from meshwise.intra.options import IntraOptions

MESH = mw.Cluster.virtual("1x p3.8xlarge").mesh((2,))
ASKS = [Ask(MESH, remat, count) for count in (2, 4) for remat in ("none", "full")]


@pytest.fixture(scope="module")
def layers() -> Any:
    return layers_of_model("gpt-tiny", 8, 2, num_layers=2)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_process, "_WORTH", 2)


def _same(a: Any, b: Any) -> bool:
    return all(np.array_equal(getattr(a, n), getattr(b, n)) for n in a.__slots__)


def test_the_same_bounds(layers: Any) -> None:
    alone, costs = (VariantCosts(layers, IntraOptions()) for _ in range(2))
    learned: list[Ask] = []
    learn = costs.learn

    def note(*args: Any) -> None:
        learned.append(Ask(*args[:3]))
        learn(*args)

    costs.learn = note  # type: ignore[method-assign]
    with SecondProcess(costs) as beside:
        beside.bound(ASKS, lambda _: None)
        process = beside.process
    assert learned
    assert all(costs.has_bounds(*ask) for ask in ASKS)
    for ask in ASKS:
        assert _same(costs.bounds(*ask), alone.bounds(*ask))
    assert process is not None
    assert process.returncode is not None


def test_a_process_that_ends_is_done_without(layers: Any) -> None:
    costs = VariantCosts(layers, IntraOptions())

    def kill(_: str) -> None:
        if beside.process is not None:
            os.kill(beside.process.pid, signal.SIGKILL)

    with SecondProcess(costs) as beside:
        beside.bound(ASKS, kill)
        assert beside.process is None
        beside.bound(ASKS, lambda _: None)
        assert beside.process is None
    assert costs.bounds(*ASKS[-1]) is not None


def test_what_cannot_be_sent_is_computed_here(layers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # As rules of a user may be.
    costs = VariantCosts(layers, IntraOptions())
    monkeypatch.setattr(costs, "graph", lambda *_: lambda: None)
    monkeypatch.setattr(costs, "bounds", lambda *_: None)
    with SecondProcess(costs) as beside:
        beside.bound(ASKS, lambda _: None)
        assert beside.process is None
