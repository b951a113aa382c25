"""Every program gives one device's numbers in every way, or refuses with the text that is kept."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import jax
import pytest

import meshwise as mw
from oracle.compare import assert_same_bf16, assert_same_fp32
from oracle.problem import Problem, Trajectory, quick_options_of, reference, run
from programs.catalog import Program, programs
from programs.document import PATH, document
from programs.ways import REFUSALS, WAYS, refusal

PROGRAMS = tuple(programs())
# Long to trace and to compile: only among the slow ones.
HEAVY = {
    "attention_in_a_window",
    "attention_under_filter_checkpoint",
    "chain_of_samples",
    "curvature_by_conjugate_gradients",
    "curve_fitted_inside_the_loss",
    "dropout_and_weight_decay_masks",
    "evidence_bound_as_a_loss",
    "experts_by_ragged_products",
    "fixed_point_inside_the_loss",
    "gaussian_process",
    "grouped_queries_with_rotary_positions",
    "heads_that_speculate",
    "layers_scanned_and_rematerialised",
    "limited_memory_newton",
    "messages_along_edges",
    "neural_stochastic_equation",
    "orbits_saved_at_times",
    "physics_informed",
    "policy_with_epochs_inside",
    "preconditioned_by_matrix_roots",
    "private_gradients",
    "recurrence_of_haiku",
    "scanned_encoder_of_linen",
    "statistics_in_a_state",
    "system_solved_without_a_matrix",
    "u_net",
    "variational_inference",
    "vision_transformer",
}
# Their refusals are quick, what runs is not; a solver that runs is in `root_inside_the_loss`.
LONG_RUNS = {"neural_differential_equation"}
# Products of bfloat16.
BFLOAT16 = {"mixed_precision_with_loss_scaling"}
# Paths of leaves whose gradient is zero but for rounding, and of their moments: keys of attention
# are compared by a softmax, what a batch norm gets is centred.
NOISE = frozenset({"['key']['bias']", "['key']['bias'].value", ".conv.bias"})


@cache
def made(program: Program) -> Problem:
    """A program, once: modules defined in it are classes of their own each time."""
    return program.problem()


@cache
def known(program: Program) -> tuple[dict[str, Any], Trajectory]:
    """The options that compile a program soonest, and its run on one device."""
    options = quick_options_of(made(program))
    return options, reference(made(program), options)


def cases() -> Iterator[Any]:
    """Each program in each way; quick are refusals and, of what runs, one way in turn."""
    for program, in_turn in zip(PROGRAMS, itertools.cycle(WAYS), strict=False):
        refused = {way for way in WAYS if (REFUSALS / program.refusal(way)).exists()}
        turn = "one_mesh" if in_turn in refused else in_turn
        quick_ways = refused if program.name in LONG_RUNS else {*refused, turn}
        for way in WAYS:
            is_quick = program.name not in HEAVY and way in quick_ways
            marks = () if is_quick else pytest.mark.slow
            yield pytest.param(program, way, id=f"{program.name}-{way}", marks=marks)


def planned(problem: Problem, way: str) -> tuple[Any, str]:
    """The step, planned in a way, or None and what a user reads in its place."""
    try:
        step = WAYS[way](problem)
        step.plan(problem.state, *problem.calls[0])
    except mw.errors.MeshwiseError as error:
        return None, refusal(error)
    return step, ""


def assert_split(problem: Problem, plan: mw.Plan) -> None:
    """Something is split, and most of the work with it."""
    specs = jax.tree.leaves(mw.partition_specs(plan, problem.state, *problem.calls[0]))
    assert plan.collectives or any(axis for spec in specs for axis in spec)
    assert plan.replicated.flop_share < 0.5, plan.warnings


@pytest.mark.parametrize(("program", "way"), tuple(cases()))
def test_program(program: Program, way: str, request: pytest.FixtureRequest) -> None:
    problem = made(program)
    step, refused = planned(problem, way)
    kept = REFUSALS / program.refusal(way)
    if request.config.getoption("--update-goldens"):
        kept.unlink(missing_ok=True)
        if refused:
            kept.write_text(refused, encoding="utf-8")
    assert refused == (kept.read_text(encoding="utf-8") if kept.exists() else "")
    if refused:
        return
    plan = step.plan(problem.state, *problem.calls[0])
    if len(plan.stages) == 1:
        assert_split(problem, plan)
    options, want = known(program)
    request.getfixturevalue("quick_steps" if options else "quick_compile")
    got = run(step, problem)
    if program.name in BFLOAT16:
        assert_same_bf16(want, got)
    else:
        assert_same_fp32(want, got, NOISE)


def test_the_readme_lists_them() -> None:
    assert PATH.read_text(encoding="utf-8") == document(), "python -m programs.document"


def test_there_are_enough() -> None:
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS) >= 45
    assert all(program.technique for program in PROGRAMS)
    names = {program.refusal(way) for program in PROGRAMS for way in WAYS}
    assert {path.name for path in REFUSALS.glob("*.txt")} <= names
