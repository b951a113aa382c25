"""The verifier finds every fault that changes what a program computes or leaves behind."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from doubles.few import few
from meshwise.errors import ProgramError
from meshwise.program.instructions import Instruction, PipelineProgram
from meshwise.program.verify import verify_in_flight, verify_program
from meshwise.schedules.verify import verify_schedule
from program.meaning import meaning, runs_mesh_by_mesh
from program.random_tables import random_program


def mutants(rng: random.Random, found: PipelineProgram) -> Iterator[tuple[str, PipelineProgram]]:
    """Programs with one instruction deleted, doubled, or two of a mesh swapped."""
    for m, mesh in enumerate(found.meshes):
        count = len(mesh.instructions)
        for at, instruction in enumerate(mesh.instructions):
            rest = [*mesh.instructions[:at], *mesh.instructions[at + 1 :]]
            yield f"deleted {instruction}", _with(found, m, rest, at, -1)
            for later in {at + 1, rng.randint(at + 1, count)}:
                twice = [*mesh.instructions[:later], instruction, *mesh.instructions[later:]]
                yield f"doubled {instruction}", _with(found, m, twice, later - 1, 1)
            others = {at + 1, rng.randint(at, count)} - {at, count}
            for other in others:
                swapped = list(mesh.instructions)
                swapped[at], swapped[other] = swapped[other], swapped[at]
                yield (
                    f"swapped {instruction} and {mesh.instructions[other]}",
                    _with(found, m, swapped, at, 0),
                )


def _with(
    found: PipelineProgram, m: int, instructions: list[Instruction], at: int, more: int
) -> PipelineProgram:
    """A mesh with other instructions; where it has one more or less, so has the order."""
    meshes = list(found.meshes)
    meshes[m] = replace(meshes[m], instructions=tuple(instructions))
    places = [n for n, mesh in enumerate(found.order) if mesh == m]
    order = list(found.order)
    if more < 0:
        del order[places[at]]
    elif more > 0:
        order.insert(places[at] + 1, m)
    return replace(found, meshes=tuple(meshes), order=tuple(order))


# Each schedule once, the smaller ones of those with several meshes, and tables of all sizes.
SEEDS = few(range(112), [1, 3, 8, 9, 24, 26, 68, 69, 81, 95])


@pytest.mark.parametrize("seed", SEEDS)
def test_what_changes_the_meaning_is_found(seed: int) -> None:
    rng = random.Random(seed)
    schedule, found = random_program(rng)
    verify_schedule(schedule)
    verify_program(found)
    verify_in_flight(found, schedule)
    expected = meaning(found)
    assert expected is not None
    assert runs_mesh_by_mesh(found)
    seen: Counter[tuple[bool, bool]] = Counter()
    for what, mutant in mutants(rng, found):
        changes = meaning(mutant) != expected
        try:
            verify_program(mutant)
        except ProgramError:
            seen[changes, True] += 1
            continue
        assert not changes, what
        assert runs_mesh_by_mesh(mutant), what
        seen[changes, False] += 1
    assert seen[True, True] > 0
    # Most instructions stand next to some that they have nothing to do with.
    assert seen[False, False] > 0
