"""Which state may stay in the memory of the host, when it comes from there, and what that takes."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace

import pytest

from doubles.graph_builders import Builder, mesh
from doubles.random_decision import random_decision
from meshwise.cluster.catalog import HOSTS
from meshwise.errors import PlanError
from meshwise.graph.graph import Graph
from meshwise.memory.gpu.target import GPU
from meshwise.memory.peak import peak
from meshwise.plan.files.json_decision import DECISION
from meshwise.plan.offload import (
    bytes_in_host,
    bytes_on_device,
    host_order,
    host_transfer_s,
    offloadable,
)
from meshwise.plan.verify import verify_decision

MESH = mesh(2, 2)
GPUS = replace(MESH, device=HOSTS["dgx-h100"].device)
SIZE = 64


def momentum_step(*, reads_first: bool = False, with_scalar: bool = False) -> Graph:
    """A product, its gradient, and an update with momentum: inputs x, w, m and perhaps a number.

    With `reads_first` the momentum is scaled before there is any gradient.
    """
    g = Builder()
    x, w, m = g.input(SIZE, SIZE), g.input(SIZE, SIZE), g.input(SIZE, SIZE)
    scaled = g.elementwise("neg", m) if reads_first else -1
    gradient = g.dot(x, g.dot(x, w))
    if not reads_first:
        scaled = g.elementwise("neg", m)
    new_m = g.elementwise("add", scaled, g.elementwise("neg", gradient))
    new_w = g.elementwise("sub", w, new_m)
    outputs, aliases = [new_w, new_m], [(1, 0), (2, 1)]
    if with_scalar:
        number = g.input()
        outputs.append(g.elementwise("neg", number))
        aliases.append((3, 2))
    return g.graph(outputs, aliases=aliases)


@pytest.mark.parametrize("reads_first", [False, True])
def test_moments_may_stay_in_the_host_and_parameters_may_not(reads_first: bool) -> None:
    graph = momentum_step(reads_first=reads_first, with_scalar=True)
    assert offloadable(graph) == (2,)
    order, (group,) = host_order(graph, (2,))
    assert sorted(order) == list(range(len(graph.operators)))
    assert group.inputs == (graph.inputs[2],)
    assert group.results == ()
    # It waits for a gradient, which is there, and comes before all that reads it.
    ((operator, operand),) = group.gradients
    gradient = graph.operators[operator].inputs[operand]
    (made,) = [i for i, op in enumerate(graph.operators) if gradient in op.outputs]
    assert graph.operators[made].heavy
    readers = [i for i, op in enumerate(graph.operators) if graph.inputs[2] in op.inputs]
    places = [order.index(i) for i in (made, group.time, *readers)]
    assert places[0] < places[1] <= min(places[2:])
    assert order.index(operator) >= places[1]


def test_moments_of_one_parameter_come_together_once_others_are_done() -> None:
    """The step updates all first moments, then all second; gradients come in the other order."""
    g = Builder()
    x = g.input(SIZE, SIZE)
    weights = [g.input(SIZE, SIZE) for _ in range(4)]
    first, second = ([g.input(SIZE, SIZE) for _ in range(4)] for _ in range(2))
    gradients = [g.dot(x, w) for w in reversed(weights)][::-1]
    new = [
        [g.elementwise("add", m, d) for m, d in zip(moments, gradients, strict=True)]
        for moments in (first, second)
    ]
    changes = [g.elementwise("mul", m, v) for m, v in zip(*new, strict=True)]
    updated = [g.elementwise("sub", w, c) for w, c in zip(weights, changes, strict=True)]
    graph = g.graph([*updated, *new[0], *new[1]], aliases=[(i + 1, i) for i in range(12)])
    assert offloadable(graph) == tuple(range(5, 13))
    order, groups = host_order(graph, offloadable(graph))
    assert [group.inputs for group in groups] == [(first[k], second[k]) for k in (3, 2, 1, 0)]
    assert [group.results for group in groups] == [(), (), (7, 11), (6, 10)]
    places = [order.index(group.time) for group in groups]
    assert places == sorted(places)
    # No more than what one parameter needs runs from one group to the next.
    assert {after - before for before, after in itertools.pairwise(places)} == {4}


def test_state_that_a_product_reads_or_that_is_not_returned_stays_on_the_device() -> None:
    graph = momentum_step()
    assert offloadable(replace(graph, aliases=((1, 0),))) == ()
    g = Builder()
    x, m = g.input(SIZE, SIZE), g.input(SIZE, SIZE)
    new_m = g.elementwise("add", m, g.dot(x, x))
    assert offloadable(g.graph([new_m, g.dot(new_m, x)], aliases=[(1, 0)])) == ()


def test_on_a_gpu_it_is_held_only_while_it_is_used() -> None:
    graph = momentum_step()
    decision = random_decision(graph, GPUS, random.Random(0))
    there = replace(decision, in_host=(2,))
    verify_decision(graph, there, GPUS)
    held = bytes_in_host(graph, there, GPUS)
    assert held > 0
    inputs = sum(graph.tensors[t].num_bytes for t in graph.inputs)
    assert bytes_on_device(graph, there, GPUS) == bytes_on_device(graph, decision, GPUS) - held
    assert bytes_on_device(graph, decision, GPUS) <= inputs
    arguments = {
        b.tensor: b.num_bytes for b in peak(graph, there, GPUS, GPU).buffers if b.start < 0
    }
    assert arguments[graph.inputs[2]] == 0
    rate = GPUS.device.host_bytes_per_s
    assert host_transfer_s(graph, there, GPUS) == pytest.approx(2 * held / rate)
    assert host_transfer_s(graph, decision, GPUS) == 0.0


def test_on_a_cpu_nothing_is_saved() -> None:
    graph = momentum_step()
    decision = random_decision(graph, MESH, random.Random(0))
    there = replace(decision, in_host=(2,))
    assert peak(graph, there, MESH).num_bytes == peak(graph, decision, MESH).num_bytes


@pytest.mark.parametrize("position", [0, 1, 7])
def test_a_plan_that_leaves_other_inputs_in_the_host_is_refused(position: int) -> None:
    graph = momentum_step()
    decision = replace(random_decision(graph, MESH, random.Random(0)), in_host=(position,))
    with pytest.raises(PlanError, match=f"input {position} lies in the memory of the host, but"):
        verify_decision(graph, decision, MESH)


def test_json_says_what_lies_in_the_host_and_nothing_where_nothing_does() -> None:
    graph = momentum_step()
    decision = random_decision(graph, MESH, random.Random(0))
    assert "in_host" not in json.dumps(DECISION.write(decision))
    there = replace(decision, in_host=(2,))
    written = json.loads(json.dumps(DECISION.write(there)))
    assert DECISION.read(written, "decision") == there
