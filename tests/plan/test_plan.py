"""The plan and its JSON: equal bytes for equal plans, equal plans for equal bytes."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from pathlib import Path

import pytest

from doubles.graph_builders import Builder, mesh, perceptron, random_graph
from doubles.random_decision import random_decision
from meshwise.cluster.cpu import cpu_cluster
from meshwise.cluster.host import HostGroup
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import PlanError
from meshwise.graph.layout import parse_layout
from meshwise.plan.counts.work import DecidedProgram, work_of
from meshwise.plan.decision import GraphDecision, OperatorDecision, Use
from meshwise.plan.fingerprint import fingerprint
from meshwise.plan.one_program import program_stage
from meshwise.plan.plan import Plan
from meshwise.plan.record import ONE_PROGRAM

MESH = cpu_cluster(4).mesh((2, 2))
GOLDEN = Path(__file__).parents[1] / "golden" / "plans"


def plan_of(graph, decision, on=MESH, **fields):
    work = work_of([DecidedProgram(graph=graph, decision=decision)], on)
    program = DecidedProgram(graph=graph, decision=decision)
    stage = program_stage(program, on, work, step_time_s=1.25e-3, peak_bytes=12345)
    values = {
        "step_time_s": 1.25e-3,
        "formula_s": 1.25e-3,
        "collectives": work.collectives,
        "stages": (stage,),
        "decisions": (decision,),
        "method": "IntraOp()",
        "objective": "time",
        "gap": 0.0,
        "space": "every layer planned freely",
        "status": "optimal",
        "fingerprint": fingerprint(graph),
        "replicated": work.replicated.shares(),
        "warnings": ("no rule for 'sort' at a.py:3",),
    }
    return Plan(**(values | fields))


def random_plan(seed, **fields):
    graph = random_graph(seed) if seed % 2 else perceptron(2, 8, 8)
    return plan_of(graph, random_decision(graph, MESH, random.Random(seed)), **fields)


@pytest.mark.parametrize("seed", range(12))
def test_json_reads_back_equal(seed):
    plan = random_plan(seed, gap=None if seed % 3 else 0.125)
    text = plan.to_json()
    again = Plan.from_json(text)
    assert again == plan
    assert again.to_json() == text
    # Any order and spacing of the same JSON is the same plan.
    assert Plan.from_json(json.dumps(json.loads(text))) == plan


def test_equal_plans_have_equal_bytes_and_other_plans_others():
    assert random_plan(3).to_json() == random_plan(3).to_json()
    assert random_plan(3).to_json() != random_plan(3, step_time_s=1.0).to_json()
    assert len({random_plan(seed).to_json() for seed in range(6)}) == 6


def test_whole_numbers_and_floats_that_are_equal_are_written_equally():
    whole, floats = random_plan(3, step_time_s=1, gap=0), random_plan(3, step_time_s=1.0, gap=0.0)
    assert whole == floats
    assert whole.to_json() == floats.to_json()


def scan_plan():
    inner = Builder()
    h = inner.input(8, 4)
    body = inner.graph([inner.elementwise("neg", h)])
    outer = Builder()
    (final,) = outer.scan(body, [outer.input(8, 4)], 0, 1, 3)
    graph = outer.graph([final])
    partial = parse_layout("R R sum:P01")
    use = Use(group=2, via=parse_layout("R R"), layout=partial)
    stay = Use(group=0, via=partial, layout=partial)
    body_decision = GraphDecision(
        inputs=(partial,),
        operators=(OperatorDecision(strategy=(-2, -2), uses=(stay,), results=(partial,)),),
        outputs=(stay,),
    )
    scan = OperatorDecision(strategy=(), uses=(use,), results=(partial,), bodies=(body_decision,))
    out = Use(group=-1, via=partial, layout=parse_layout("S1 S0"))
    decision = GraphDecision(inputs=(parse_layout("R R"),), operators=(scan,), outputs=(out,))
    return plan_of(graph, decision)


def test_bodies_groups_and_partial_sums_read_back():
    plan = scan_plan()
    text = plan.to_json()
    assert '"R R sum:P01 via R R group 2"' in text
    assert '"S1 S0 via R R sum:P01 group -1"' in text
    assert Plan.from_json(text) == plan


def test_version_3_reads_as_the_plan_that_it_was():
    """The file was written by the version of that format."""
    text = (GOLDEN / "plan-version-3.json").read_text()
    read, same = Plan.from_json(text), random_plan(3)
    assert read.peak_bytes == same.peak_bytes == json.loads(text)["peak_bytes"]
    assert read.cluster is None
    assert read.schedule == ONE_PROGRAM
    # What it did not say is what the rest follows from.
    (stage,) = read.stages
    told = dataclasses.replace(stage, resident_bytes=0, temporary_bytes=stage.peak_bytes)
    assert dataclasses.replace(same, stages=(told,), tried=((1, same.step_time_s),)) == read
    assert Plan.from_json(read.to_json()) == read


def test_version_2_had_all_memory_of_a_device():
    text = (GOLDEN / "plan-version-3.json").read_text()
    data = json.loads(text) | {"version": 2}
    for stage in data["stages"]:
        del stage["memory_bytes"]
    assert Plan.from_json(json.dumps(data)) == Plan.from_json(text)


def test_text_is_for_readers():
    text = random_plan(0).to_json()
    assert text.endswith("}\n")
    data = json.loads(text)
    assert list(data) == sorted(data)
    assert data["format"] == "meshwise-plan"
    assert data["version"] == 6
    assert max(map(len, text.splitlines())) < 160
    # One operator a line.
    assert sum('"strategy"' in line for line in text.splitlines()) == len(
        perceptron(2, 8, 8).operators
    )


def test_worst_stage_is_reported():
    plan = random_plan(0)
    small = plan.stages[0]
    layer = dataclasses.replace(small.layers[0], layer=1)
    large = dataclasses.replace(
        small,
        layers=(layer,),
        first_device=4,
        temporary_bytes=99999 - small.resident_bytes,
        device_flop=1e12,
    )
    both = dataclasses.replace(plan, stages=(small, large), schedule="1f1b", num_microbatches=4)
    assert (both.peak_bytes, both.device_flop) == (99999, 1e12)
    assert Plan.from_json(both.to_json()) == both
    with pytest.raises(PlanError, match="the plan has 2 stages, each with its own mesh"):
        _ = both.mesh
    shared = dataclasses.replace(large, first_device=0)
    assert dataclasses.replace(both, stages=(small, shared)).device_flop == 1e12 + small.device_flop


def test_infinite_numbers_are_not_written():
    with pytest.raises(PlanError, match="infinite numbers cannot be written"):
        random_plan(0, step_time_s=math.inf).to_json()


def edited(edit):
    data = json.loads(random_plan(0).to_json())
    edit(data)
    return json.dumps(data)


def setter(*keys):
    def put(data, value):
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = value

    return put


DENSE = ("stages", 0, "dense", 0)
OPERATOR = ("decisions", 0, "operators", 0)
ARGUMENTS = ("stages", 0, "layers", 0, "arguments")


@pytest.mark.parametrize(
    ("keys", "value", "text"),
    [
        (
            ("format",),
            "other",
            "the field 'format' must be 'meshwise-plan' or",
        ),
        (("version",), 1, "field 'version': this program reads version 2, 3, 4, 5 and 6, got 1"),
        (("step_time_s",), "fast", "field 'step_time_s': expected a finite number, got 'fast'"),
        (("step_time_s",), True, "field 'step_time_s': expected a finite number, got True"),
        (("step_time_s",), math.nan, "field 'step_time_s': expected a finite number, got nan"),
        (("gap",), "none", "field 'gap': expected a finite number"),
        (("num_microbatches",), 0, "field 'num_microbatches': expected a whole number above zero"),
        (("num_microbatches",), 1.5, "field 'num_microbatches': expected a whole number, got 1.5"),
        (("warnings",), "careful", "field 'warnings': expected a list, got 'careful'"),
        (("warnings",), [3], r"field 'warnings\[0\]': expected a text, got 3"),
        (("stages",), [], "field 'stages': a plan needs at least one stage"),
        (("stages", 0, "once_s"), -1, r"field 'stages\[0\].once_s': expected a number, zero"),
        (("stages", 0, "layers"), [], r"'stages\[0\].layers': a stage needs at least one layer"),
        (("schedule",), "2f2b", "field 'schedule': no schedule is named '2f2b'; known are"),
        (("peak_bytes",), 7, "field 'peak_bytes': 7 is not that of the worst stage, 12345"),
        (("extra",), 1, "field 'extra' is unknown"),
        ((*OPERATOR, "extra"), 1, r"field 'decisions\[0\].operators\[0\].extra' is unknown"),
        (
            (*OPERATOR, "strategy", 0),
            "x",
            r"operators\[0\].strategy\[0\]': expected a whole number",
        ),
        ((*OPERATOR, "results", 0), "S", r"operators\[0\].results\[0\]': expected a layout"),
        ((*OPERATOR, "uses", 0), "S0 R over R R", r"uses\[0\]': expected a layout, as 'S0 R'"),
        ((*OPERATOR, "uses", 0), "S0 R via X", r"uses\[0\]': expected a layout"),
        ((*OPERATOR, "uses", 0), "S0 R group x", r"uses\[0\]': expected a layout"),
        ((*OPERATOR,), 5, r"operators\[0\]': expected an object, got 5"),
        (("stages", 0, "mesh", "axes", 1, "size"), 0, r"mesh.axes\[1\].size': expected a whole"),
        (("stages", 0, "mesh", "device", "flop_per_s"), {}, r"device.flop_per_s': expected a list"),
        (("replicated", "largest"), [["a"]], r"replicated.largest\[0\]': expected a list of two"),
        (("space",), None, "field 'space': expected a text, got None"),
        (
            (*ARGUMENTS, 0, "itemsize"),
            -1,
            r"arguments\[0\].itemsize': expected a whole",
        ),
        (
            (*ARGUMENTS, 0, "shape"),
            [8],
            r"arguments\[0\].layout': layout .* does not fit w0",
        ),
        (ARGUMENTS, [], r"arguments': 0 arguments, but 4 layouts in 'decisions\[0\].inputs'"),
        ((*ARGUMENTS, 0, "layout"), "R R sum:P0", r"an argument cannot be partial"),
        ((*ARGUMENTS, 0, "layout"), "S2 R", r"layout S2 R does not fit w0 of shape"),
        (("decisions", 0, "inputs", 0), "R R sum:P0", r"inputs\[0\]' is R R sum:P0"),
        (("decisions",), [], r"layers\[0\].decision': there is no decision 0 among 0"),
        ((*DENSE, "count"), 0, r"dense\[0\].count': expected a whole number above zero"),
        ((*DENSE, "results", 0), "S7 R", r"dense\[0\].results\[0\]': layout S7 R names an axis"),
        (("collectives", 0, "axes"), ["q"], r"collectives\[0\].axes': 'q' is not an axis of the"),
        (("collectives", 0, "stage"), 1, r"collectives\[0\].stage': 1 is not one of 1 stage"),
        (("collectives",), [{}], r"field 'collectives\[0\].kind' is missing"),
    ],
)
def test_wrong_field_is_named(keys, value, text):
    broken = edited(lambda data: setter(*keys)(data, value))
    with pytest.raises(PlanError, match=text):
        Plan.from_json(broken)


@pytest.mark.parametrize("key", ["stages", "gap", "collectives", "fingerprint", "warnings"])
def test_missing_field_is_named(key):
    with pytest.raises(PlanError, match=f"field '{key}' is missing"):
        Plan.from_json(edited(lambda data: data.pop(key)))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"plan"', "null", "{}"])
def test_other_texts_are_no_plans(text):
    with pytest.raises(PlanError, match="a plan must be JSON|not a plan"):
        Plan.from_json(text)


# -- fingerprint ----------------------------------------------------------------------------------


def test_fingerprint_is_that_of_the_computation():
    graph = perceptron(2, 8, 8)
    assert fingerprint(graph) == fingerprint(perceptron(2, 8, 8))
    renamed = dataclasses.replace(
        graph,
        tensors=tuple(dataclasses.replace(t, name="other") for t in graph.tensors),
        operators=tuple(dataclasses.replace(op, where="b.py:9") for op in graph.operators),
    )
    assert fingerprint(renamed) == fingerprint(graph)


def test_fingerprint_sees_every_other_change():
    graph = perceptron(2, 8, 8)
    others = [
        perceptron(2, 8, 16),
        perceptron(3, 8, 8),
        dataclasses.replace(graph, aliases=()),
        dataclasses.replace(graph, outputs=graph.outputs[:-1]),
        dataclasses.replace(
            graph,
            operators=(
                dataclasses.replace(graph.operators[0], detail="other"),
                *graph.operators[1:],
            ),
        ),
        dataclasses.replace(
            graph,
            tensors=(dataclasses.replace(graph.tensors[0], dtype="bfloat16"), *graph.tensors[1:]),
        ),
    ]
    prints = {fingerprint(other) for other in (graph, *others)}
    assert len(prints) == len(others) + 1


def test_fingerprint_looks_into_bodies():
    def scan(kind, length):
        inner = Builder()
        h = inner.input(8, 4)
        body = inner.graph([inner.elementwise(kind, h)])
        outer = Builder()
        (final,) = outer.scan(body, [outer.input(8, 4)], 0, 1, length)
        return outer.graph([final])

    assert len({fingerprint(scan(k, n)) for k in ("neg", "max") for n in (2, 3)}) == 4


def test_mesh_of_a_real_cluster_reads_back():
    graph = perceptron(1, 8, 8)
    on = mesh(2, 2, bandwidths=[1e9, 3.3e11], latency_s=3.4e-6)
    decision = random_decision(graph, on, random.Random(0))
    plan = plan_of(graph, decision, on)
    assert Plan.from_json(plan.to_json()).mesh == on


def test_measured_times_of_products_read_back_and_are_left_out_where_there_are_none():
    cluster = cpu_cluster(8)
    host = cluster.host
    times = (("float32", ((2e6, 1e-3), (16e6, 2e-3))),)
    measured = dataclasses.replace(host.device, dense_times=times)
    group = HostGroup(count=1, host=dataclasses.replace(host, device=measured))
    on = ClusterSpec(name="measured", groups=(group,)).mesh((2, 4))
    graph = perceptron(1, 8, 8)
    decision = random_decision(graph, on, random.Random(0))
    plan = plan_of(graph, decision, on)
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.mesh.device.dense_times == times
    plain = plan_of(graph, decision, cluster.mesh((2, 4)))
    assert "dense_times" not in plain.to_json()
    edited = plan.to_json().replace("16000000.0", '"many"')
    with pytest.raises(PlanError, match=r"dense_times\[0\]\[1\]\[1\]\[0\]"):
        Plan.from_json(edited)
