"""Ends a run: exact bounds, proofs, and exact engines for what has become small."""

from __future__ import annotations

import math

import numpy as np

from meshwise.assignment.bounds.ascent import Ascent
from meshwise.assignment.bounds.exact_bound import dearest, exact_bound
from meshwise.assignment.bounds.messages import room_left
from meshwise.assignment.exact.enumeration import UNCOUNTED, enumerate_choices
from meshwise.assignment.exact.integer_program import ExactAnswer, num_columns, solve_exactly
from meshwise.assignment.proof.proof import BRIEF_WORK, WORK, prove
from meshwise.assignment.reductions.reduction import Reduction, expanded
from meshwise.assignment.run_state import LOOKS_AT_REST, Shared, whole
from meshwise.errors import SolverError

# Columns of an integer program that is given to the exact engine, at most.
_EXACT_COLUMNS = 120_000
# Steps of enumeration in a counted run, about ten seconds.
_STEPS = 20_000_000


def note_bound(ascent: Ascent, shared: Shared) -> None:
    """Make the bound of the present messages exact."""
    proven = exact_bound(ascent.network, ascent.held, ascent.prices)
    if proven is not None and math.isinf(shared.cost) and proven > dearest(ascent.network):
        shared.is_impossible = True
        shared.finish()
    elif proven is not None:
        # What a further reduction took out costs at least as much as the best solution.
        shared.proven = max(shared.proven, min(proven, whole(shared.cost)))
        if shared.proven >= shared.cost:
            shared.finish()


def close(chain: list[Reduction], shared: Shared) -> None:
    """Nothing is left to decide: what remains is a solution, or none is better than the best."""
    if not chain[-1].infeasible:
        shared.offer(expanded(chain, np.zeros(0, np.int64)))
    shared.proven = whole(shared.cost)
    shared.finish()


def may_solve_rest(ascent: Ascent) -> bool:
    """Return whether what is left is small enough for the exact engine."""
    return num_columns(ascent.network) <= _EXACT_COLUMNS


def try_proof(ascent: Ascent, chain: list[Reduction], shared: Shared) -> bool:
    """Try to prove the best with a fixed amount of work; whether nothing is left to do."""
    # The first rounds may go too far for a better bound, but in a good direction.
    prices = ascent.best_prices if ascent.best_prices.any() else ascent.prices
    work = BRIEF_WORK if shared.options.brief else WORK
    fits = bool((room_left(ascent.network, ascent.choice) >= 0).all())
    choice = ascent.choice if math.isfinite(ascent.cost) and fits else None
    proof = prove(ascent.network, prices, shared.cost, stop=shared.stop, choice=choice, work=work)
    if shared.must_stop:
        return True
    if proof.choice is not None:
        shared.offer(expanded(chain, proof.choice))
        ascent.cost = min(ascent.cost, shared.cost)
    if proof.is_proved:
        shared.end()
    elif proof.bound > -math.inf and math.isfinite(shared.cost):
        shared.proven = max(shared.proven, min(math.ceil(proof.bound), whole(shared.cost)))
    return proof.is_proved


def solve_rest(ascent: Ascent, chain: list[Reduction], shared: Shared) -> None:
    """Let the exact engine find the best, or prove that there is none better."""
    priced = np.argsort(-ascent.best_prices)[:200]
    cutoff = shared.cost
    try:
        answer = solve_exactly(
            ascent.network,
            cutoff=cutoff,
            first_rows=[int(r) for r in priced if ascent.best_prices[r] > 0],
            effort=shared.effort(LOOKS_AT_REST),
            stop=shared.stop,
        )
    except SolverError:
        answer = ExactAnswer(choice=None, is_proved=False)
    if answer.choice is not None:
        shared.offer(expanded(chain, answer.choice))
    if not answer.is_proved and not shared.must_stop:
        # Rows that bind to the byte, or costs that HiGHS cannot tell apart.
        steps = _STEPS if shared.options.counted else UNCOUNTED
        choice, is_proved = enumerate_choices(
            ascent.network, ascent.held, ascent.prices, shared.cost, steps=steps
        )
        answer = ExactAnswer(choice=choice, is_proved=is_proved)
        if choice is not None:
            shared.offer(expanded(chain, choice))
    if answer.is_proved:
        shared.end()
