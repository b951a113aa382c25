"""Pipelines between the least memory and what they take without a limit: they fit, or are refused.

A refusal names a memory with which there is a pipeline.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import meshwise as mw
from doubles.perceptron import perceptron
from meshwise.errors import InfeasibleError, PlanError
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.search.search_space import SearchOptions
from meshwise.intra.options import IntraOptions
from meshwise.models.named import model_config
from meshwise.models.steps import model_step
from meshwise.planner import shared_plans
from meshwise.planner.pipeline import layers_of, plan_pipeline, search_options
from meshwise.planner.planned_pipeline import PlannedPipeline
from meshwise.planner.schedule_choice import planned_layers
from meshwise.request.pipeline_request import PipelineRequest
from meshwise.schedules.registry import choices
from meshwise.trace.layers.layering import Layering
from meshwise.trace.step import StepSignature

pytestmark = pytest.mark.usefixtures("compiled_kernels")

SIGNATURE = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")
# Two devices, and four of one host.
PAIR, HOST = "2x p3.2xlarge", "1x p3.8xlarge"


class Model(NamedTuple):
    """Layers of a step, traced once."""

    layers: Layering
    options: SearchOptions


@functools.cache
def model(name: str) -> Model:
    steps = {
        "equal": lambda: perceptron((64,) * 5),
        "few rows": lambda: perceptron((64,) * 5, 8),
        "narrow": lambda: perceptron((128, 32, 64, 16, 128)),
        "llama": lambda: model_step(model_config("llama-tiny"), 16).abstract,
        "moe": lambda: model_step(model_config("moe-tiny"), 16).abstract,
    }
    step, state, batch = steps[name]()
    num_layers = None if name in ("llama", "moe") else 4
    layers, flop = layers_of(step, (state, batch), {}, SIGNATURE, num_layers)
    request = PipelineRequest(cluster=mw.Cluster.virtual(PAIR))
    return Model(layers, search_options(layers, flop, request))


class Case(NamedTuple):
    """What is planned, with a share of what the model takes without a limit."""

    model: str
    cluster: str
    schedule: str
    meshes: int | None
    counts: tuple[int, ...] | None
    share: float


def planned(case: Case, memory_bytes: int | None) -> PlannedPipeline:
    found, schedule = model(case.model), choices()[case.schedule]
    options = dataclasses.replace(
        found.options,
        schedules=(schedule,),
        num_stages=None if case.meshes is None else case.meshes * schedule.chunks,
        num_microbatches=case.counts,
        memory_bytes=memory_bytes,
    )
    return planned_layers(found.layers, mw.Cluster.virtual(case.cluster), options)


@functools.cache
def free_bytes(name: str, cluster: str) -> int:
    """The peak of a model's plan in two stages without a limit."""
    case = Case(name, cluster, "1f1b", 2, (4,), 1.0)
    return planned(case, None).plan.peak_bytes


def answered(case: Case, memory_bytes: int) -> int | str:
    """Plan a case; what it holds must fit.  Returns its peak, or the text of a refusal."""
    try:
        found = planned(case, memory_bytes)
    except (InfeasibleError, PlanError) as error:
        return f"{type(error).__name__}: {error}"
    assert found.plan.peak_bytes <= memory_bytes
    # The simulator counts on its own.
    assert max(found.timeline.peak_bytes) <= memory_bytes
    return found.plan.peak_bytes


def check(case: Case) -> None:
    """A case fits, or is refused, and then fits into the memory that the refusal names."""
    memory_bytes = int(case.share * free_bytes(case.model, case.cluster))
    found = answered(case, memory_bytes)
    if isinstance(found, int):
        return
    if "must be 2 times as many as equal meshes" in found:
        assert choices()[case.schedule].chunks == 2
    elif "whatever the memory" in found:
        assert case.meshes is not None
    else:
        enough = int(re.findall(r"memory_bytes=(\d+)", found)[0])
        assert enough > memory_bytes
        needed = answered(case, enough)
        assert isinstance(needed, int), needed
        # Else the refusal was not true.
        assert needed > memory_bytes


def cases(
    models: tuple[str, ...],
    clusters: tuple[str, ...],
    meshes: tuple[int | None, ...],
    counts: tuple[tuple[int, ...] | None, ...],
) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        model=st.sampled_from(models),
        cluster=st.sampled_from(clusters),
        schedule=st.sampled_from(tuple(choices())),
        meshes=st.sampled_from(meshes),
        counts=st.sampled_from(counts),
        # From below the least to above what two stages take without a limit.
        share=st.floats(0.65, 1.2),
    )


def property_settings(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture
def shared_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are planned once for all cases of a model, as for all schedules of one call."""
    shared = functools.cache(lambda layers: VariantCosts(layers, IntraOptions()))

    def costs(layers: Layering, intra: IntraOptions, times: None, records: None) -> VariantCosts:
        assert intra == IntraOptions(rows_first=True)
        assert times is None
        assert records is None
        return shared(layers)

    monkeypatch.setattr(shared_plans, "VariantCosts", costs)


@pytest.mark.usefixtures("shared_costs")
@property_settings(5)
@given(cases(("equal", "few rows"), (PAIR,), (None, 2), ((2, 4), (4,), (8,))))
def test_pipelines_fit_or_are_refused(case: Case) -> None:
    check(case)


def test_fewer_micro_batches_are_looked_at_before_a_refusal() -> None:
    # Two micro-batches of four rows hold less on eight devices than eight of one row.
    step, state, batch = perceptron((256,) * 4, 8)
    request = PipelineRequest(
        cluster=mw.Cluster.virtual("1x p3.16xlarge"),
        num_layers=3,
        schedules=(choices()["1f1b"],),
        memory_bytes=402_196,
    )
    plan = plan_pipeline(step, (state, batch), {}, SIGNATURE, request).plan
    assert plan.peak_bytes <= 402_196


@pytest.mark.slow
@property_settings(1000)
@given(
    cases(
        ("equal", "few rows", "narrow", "llama", "moe"),
        (PAIR, HOST),
        (None, 2, 3, 4),
        (None, (4,), (8,), (2, 4, 8)),
    )
)
def test_many_pipelines_fit_or_are_refused(case: Case) -> None:
    check(case)
