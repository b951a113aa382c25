"""The backward pass as two programs: nothing is lost, nothing heavy or sent is done twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import pytest

from doubles.layered_steps import CLIPPED, layering, unet_step
from doubles.planned_stages import StageShape, planned_stages
from meshwise.inter.layer_cost.footprint import footprint
from meshwise.models.named import model_config
from meshwise.models.steps import model_step
from meshwise.pieces.programs import PhaseProgram, piece_programs
from meshwise.pieces.roles import PieceRoles
from meshwise.pieces.split_backward import split_backward
from meshwise.plan.counts.collectives import collectives
from meshwise.runtime.pipeline.build import StageChoice
from meshwise.trace.layers.layering import Layering

SHAPES: list[StageShape] = [(0, 1, (2, 2), "none"), (2, 4, (2, 1), "full")]


def unet() -> tuple[Layering, list[StageChoice]]:
    step, args = unet_step()
    layers = layering(step, args, 5)
    return layers, planned_stages(layers, 2, SHAPES)


def gpt() -> tuple[Layering, list[StageChoice]]:
    made = model_step(model_config("gpt-mini"), 8, CLIPPED)
    state = jax.eval_shape(made.create, jax.random.key(0))
    layers = layering(made.step, (state, made.batch), 5)
    return layers, planned_stages(layers, 2, SHAPES)


def sent(program: PhaseProgram, mesh: Any) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for record in collectives(program.part.graph, program.part.decision, mesh):
        found[record.kind, record.group_size] += record.num_bytes * record.count
    return found


def heavy(program: PhaseProgram) -> Counter[int]:
    part = program.part
    pairs = zip(part.operators, part.graph.operators, strict=True)
    return Counter(number for number, operator in pairs if operator.heavy)


@pytest.mark.parametrize("make", [unet, gpt])
def test_two_programs_do_the_work_of_one(make: Any) -> None:
    layers, choices = make()
    apart = 0
    for choice in choices:
        for k, decision in enumerate(choice.decisions, choice.first_layer):
            piece = layers.graph(k, k, 2, choice.remat)
            programs = piece_programs(PieceRoles(piece, decision, choice.mesh))
            split, whole = split_backward(programs), programs.backward
            gradient, weights = split.gradient, split.weights
            assert Counter((*gradient.outputs, *weights.outputs)) == Counter(
                (*whole.outputs, *split.delayed)
            )
            assert {*gradient.part.operators, *weights.part.operators} == {*whole.part.operators}
            assert heavy(gradient) + heavy(weights) == heavy(whole)
            assert sent(gradient, choice.mesh) + sent(weights, choice.mesh) == sent(
                whole, choice.mesh
            )
            # Each program reads what is there, or what the other one leaves.
            assert {*gradient.inputs} <= {*whole.inputs}
            assert {*weights.inputs} <= {*whole.inputs, *split.delayed}
            assert {*split.delayed} <= {*weights.inputs}
            assert not any(v.role == "inward" for v in weights.outputs)
            for program in (gradient, weights):
                for i, j in program.part.graph.aliases:
                    assert program.inputs[i] == program.outputs[j]
                    assert program.inputs[i].role == "sum"
            apart += bool(weights.outputs)
            held = footprint(piece, decision, choice.mesh, splits_backward=True)
            assert (held.weight_bytes > 0) == bool(weights.outputs)
            together = footprint(piece, decision, choice.mesh)
            assert held.resident_bytes == together.resident_bytes
            assert held.microbatch_bytes == together.microbatch_bytes
            assert together.weight_bytes == 0
    assert apart >= 3


def test_a_layer_without_gradients_of_weights_has_one_program() -> None:
    step, args = unet_step()
    layers = layering(step, args, 5)
    choices = planned_stages(layers, 2, [(0, 4, (2,), "none")])
    found = []
    for k, decision in enumerate(choices[0].decisions):
        roles = PieceRoles(layers.graph(k, k, 2, "none"), decision, choices[0].mesh)
        split = split_backward(piece_programs(roles))
        if not split.weights.outputs:
            found.append(k)
            assert split.gradient.outputs == piece_programs(roles).backward.outputs
            assert split.delayed == split.held == ()
    # The activations between the dense layers.
    assert found
