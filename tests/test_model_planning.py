"""Plans of the models: nothing runs quietly whole on every device."""

from __future__ import annotations

from typing import Any

import pytest

import meshwise as mw
from model_configs import CONFIGS
from model_steps import model_step
from oracle.parallel import CLUSTER


def _names() -> list[Any]:
    """The U-Transformer takes ten times as long to plan as the others."""
    slow = {"u-transformer": [pytest.mark.slow]}
    return [pytest.param(name, marks=slow.get(name, [])) for name in CONFIGS]


@pytest.mark.parametrize("shape", [(8,), (2, 4)], ids=str)
@pytest.mark.parametrize("name", _names())
def test_nothing_of_a_model_runs_quietly_whole(name, shape):
    """At most 1 % of the FLOP and 5 % of the bytes, and no primitive without a rule."""
    step, state, batch = model_step(*CONFIGS[name])
    plan = mw.parallelize(step, method=mw.IntraOp(shape), cluster=CLUSTER).plan(state, batch)
    assert plan.replicated.flop_share <= 0.01
    assert plan.replicated.bytes_share <= 0.05
    assert plan.warnings == ()
