"""The plan as text: what a reader finds in it."""

from __future__ import annotations

import dataclasses
import random

import pytest

from doubles.graph_builders import Builder, perceptron, random_graph
from doubles.pipelines import pipeline
from doubles.random_decision import random_decision
from meshwise.cluster.cpu import cpu_cluster
from meshwise.graph.layout import Layout, parse_layout
from meshwise.plan.counts.collectives import collective_s
from meshwise.plan.counts.flop import Replicated
from meshwise.plan.counts.work import DecidedProgram, work_of
from meshwise.plan.decision import GraphDecision, OperatorDecision, Use
from meshwise.plan.one_program import program_stage
from meshwise.plan.plan import Plan
from meshwise.plan.text.columns import WIDTH, layout_spec, table
from meshwise.plan.text.explain import explain
from meshwise.units import bytes_text, flop_text, seconds_text

MESH = cpu_cluster(4).mesh((2, 2))


def plan_of(graph, decision, **fields):
    work = work_of([DecidedProgram(graph=graph, decision=decision)], MESH)
    program = DecidedProgram(graph=graph, decision=decision)
    stage = program_stage(program, MESH, work, step_time_s=1.25e-3, peak_bytes=3 * 2**20)
    values = {
        "step_time_s": 1.25e-3,
        "formula_s": 1.25e-3,
        "collectives": work.collectives,
        "stages": (stage,),
        "decisions": (decision,),
        "method": "IntraOp()",
        "objective": "time",
        "gap": 0.0123,
        "space": "every layer planned freely, on this mesh",
        "status": "time limit",
        "fingerprint": "0",
        "replicated": work.replicated.shares(),
        "warnings": ("no rule for 'sort' at a.py:3",),
    }
    return Plan(**(values | fields))


def staged(plan, stages):
    """The plan with these stages, one after the other."""
    placed = [
        dataclasses.replace(
            stage,
            layers=(dataclasses.replace(stage.layers[0], layer=k, equal_to=k),),
            first_device=4 * k,
        )
        for k, stage in enumerate(stages)
    ]
    return dataclasses.replace(plan, stages=tuple(placed), schedule="1f1b")


def use(text, via=None):
    return Use(group=0, via=parse_layout(via or text), layout=parse_layout(text))


def layers(count):
    """Products with weights that are split over both axes and gathered for use."""
    g = Builder()
    h = g.input(64, 64, name="batch.x")
    weights = [g.input(64, 64, name=f"params.layer_{i}.kernel") for i in range(count)]
    for w in weights:
        h = g.dot(h, w)
    graph = g.graph([h])
    chosen = OperatorDecision(
        strategy=(0, 0),
        uses=(use("S01 R"), use("R R", "S01 R")),
        results=(parse_layout("S01 R"),),
    )
    decision = GraphDecision(
        inputs=(parse_layout("S01 R"),) * (count + 1),
        operators=(chosen,) * count,
        outputs=(use("S01 R"),),
    )
    return graph, decision


def section(text, title):
    """Lines below a title, up to the next empty line."""
    lines = text.splitlines()
    start = lines.index(title) + 1
    end = next((i for i in range(start, len(lines)) if not lines[i]), len(lines))
    return lines[start:end]


def test_summary_tells_method_mesh_time_and_memory():
    graph, decision = layers(2)
    lines = explain(plan_of(graph, decision)).splitlines()
    assert lines[:5] == [
        "method        IntraOp()",
        "objective     time",
        "search        stopped by the time limit; no plan of its space is predicted to be more "
        "than 1.23%",
        "              faster",
        "space         every layer planned freely, on this mesh",
    ]
    assert "mesh          x=2 y=2, 4 x virtual CPU" in lines
    assert "step time     1.25 ms (predicted)" in lines
    assert "memory        3 MiB of 4 GiB on the worst device (predicted)" in lines
    assert "replicated    0.00% of FLOP and 0.00% of bytes run whole on every device" in lines
    without = explain(plan_of(graph, decision, gap=None)).splitlines()
    assert without[2] == "search        stopped by the time limit; no bound known"
    # Without a bound there is nothing that a space would tell.
    assert not any(line.startswith("space") for line in without)


def test_a_plan_that_does_not_fit_says_so_first():
    graph, decision = layers(1)
    plan = plan_of(graph, decision)
    large = dataclasses.replace(plan.stages[0], resident_bytes=0, temporary_bytes=5 * 2**30)
    text = explain(dataclasses.replace(plan, stages=(large,)))
    assert text.startswith(
        "does not fit: the plan needs 5 GiB, a device of 4 x virtual CPU has 4 GiB: 1 GiB too "
        "much\n"
        "Plan again with this version of Meshwise: earlier ones could return such plans.\n"
        "\n"
        "method        IntraOp()\n"
    )
    both = explain(staged(plan, (plan.stages[0], large)))
    assert both.startswith("does not fit: stage 1 needs 5 GiB, a device of 4 x virtual CPU has 4 ")
    exact = dataclasses.replace(
        plan.stages[0], resident_bytes=0, temporary_bytes=plan.mesh.device.memory_bytes
    )
    assert explain(dataclasses.replace(plan, stages=(exact,))).startswith("method ")


def test_equal_layers_share_a_row_with_their_layout_and_bytes():
    graph, decision = layers(4)
    rows = section(explain(plan_of(graph, decision)), "Arguments")
    assert [row.split("  ")[0] for row in rows[2:]] == ["params.layer_{0-3}.kernel", "batch.x"]
    kernels = [row for row in rows if "kernel" in row]
    assert len(kernels) == 1
    assert kernels[0].split() == [
        "params.layer_{0-3}.kernel",
        "4",
        "float32[64,64]",
        "P((x,",
        "y),",
        "-)",
        "16",
        "KiB",
    ]


def test_each_of_a_few_arguments_has_a_row():
    graph, decision = layers(3)
    rows = section(explain(plan_of(graph, decision)), "Arguments")
    kernels = [f"params.layer_{i}.kernel" for i in range(3)]
    assert sorted(row.split("  ")[0] for row in rows[2:]) == ["batch.x", *kernels]


def test_dense_products_show_operands_and_result():
    graph, decision = layers(2)
    rows = section(explain(plan_of(graph, decision)), "Dense products and convolutions")
    assert len(rows) == 4
    assert rows[2].startswith("dot_general at hand.py:1")
    assert "P((x, y), -) P(-, -) -> P((x, y), -)" in rows[2]
    assert rows[2].endswith("131 kFLOP")


def test_collectives_are_summed_by_kind_and_axes():
    graph, decision = layers(3)
    plan = plan_of(graph, decision)
    rows = section(explain(plan), "Collectives in a step")
    seconds = 3 * collective_s(plan.collectives[0], MESH)
    assert len(rows) == 4
    assert rows[2].split() == [
        "all-gather",
        "x",
        "y",
        "4",
        "3",
        "48",
        "KiB",
        *seconds_text(seconds).split(),
    ]
    assert rows[3].split()[:2] == ["all", "3"]


def test_counts_of_scans_are_in_the_sums():
    graph, decision = layers(1)
    plan = plan_of(graph, decision)
    many = tuple(dataclasses.replace(c, count=24) for c in plan.collectives)
    rows = section(explain(dataclasses.replace(plan, collectives=many)), "Collectives in a step")
    assert rows[2].split()[4:7] == ["24", "384", "KiB"]


def test_plan_without_collectives_says_none():
    graph, decision = layers(1)
    text = explain(plan_of(graph, decision, collectives=()))
    assert section(text, "Collectives in a step") == ["none"]


def test_replicated_operators_and_warnings_are_listed():
    graph, decision = layers(1)
    replicated = Replicated(flop_share=0.25, bytes_share=0.5, largest=(("sort at a.py:3", 2**20),))
    text = explain(plan_of(graph, decision, replicated=replicated))
    assert "replicated    25.00% of FLOP and 50.00% of bytes run whole on every device" in text
    assert section(text, "Runs whole on every device")[2].split() == [
        "sort",
        "at",
        "a.py:3",
        "1",
        "MiB",
    ]
    assert section(text, "Warnings") == ["- no rule for 'sort' at a.py:3"]


@pytest.mark.parametrize("seed", range(6))
def test_a_plan_that_was_read_back_explains_itself_equally(seed):
    graph = random_graph(seed) if seed % 2 else perceptron(2, 8, 8, momentum=True)
    plan = plan_of(graph, random_decision(graph, MESH, random.Random(seed)))
    assert Plan.from_json(plan.to_json()).explain() == plan.explain() == explain(plan)


def test_the_number_of_an_argument_keeps_rows_apart():
    g = Builder()
    for name in ("0/layer_0/w", "0/layer_1/w", "1/layer_0/w", "12/layer_0/w", "12/layer_3/w"):
        g.input(4, 4, name=name)
    decision = GraphDecision(inputs=(parse_layout("R R"),) * 5, operators=(), outputs=())
    rows = section(explain(plan_of(g.graph([]), decision)), "Arguments")
    assert [row.split()[:2] for row in rows[2:]] == [
        ["0/layer_{0-1}/w", "2"],
        ["12/layer_{0,3}/w", "2"],
        ["1/layer_0/w", "1"],
    ]


@pytest.mark.parametrize("seed", range(10))
def test_lines_keep_to_the_width(seed):
    graph = perceptron(3, 8, 8, momentum=True, bias=True)
    tensors = tuple(
        dataclasses.replace(t, name=f"{t.name}.{'deep.' * 30}kernel") if t.name else t
        for t in graph.tensors
    )
    operators = tuple(
        dataclasses.replace(op, where=f"{'folder/' * 20}model.py:{i}")
        for i, op in enumerate(graph.operators)
    )
    graph = dataclasses.replace(graph, tensors=tensors, operators=operators)
    decision = random_decision(graph, MESH, random.Random(seed))
    lines = explain(plan_of(graph, decision)).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert all(line == line.rstrip() for line in lines)


def test_the_largest_of_many_arguments_are_told():
    g = Builder()
    names = [f"{chr(97 + i // 26)}{'/a' * i}" for i in range(100)]
    for name in names:
        g.input(4, 4, name=name)
    g.input(40, 10, name="largest")
    graph = g.graph([])
    decision = GraphDecision(inputs=(parse_layout("R R"),) * 101, operators=(), outputs=())
    plan = plan_of(graph, decision)
    rows = section(explain(plan), "Arguments")
    assert len(rows) == 2 + 30 + 1
    assert rows[2].startswith("largest ")
    assert rows[-1] == "71 more in the full text (56.8% of the bytes)"
    assert len(section(explain(plan, full=True), "Arguments")) >= 2 + 101


def two_stages(changed_count=1):
    graph, decision = layers(1)
    plan = plan_of(graph, decision)
    collectives = (
        *plan.collectives,
        *(dataclasses.replace(c, stage=1, count=changed_count) for c in plan.collectives),
    )
    return staged(dataclasses.replace(plan, collectives=collectives), plan.stages * 2)


def test_equal_stages_share_rows():
    text = explain(two_stages())
    dense = section(text, "Dense products and convolutions, of each stage alone")
    assert [row.split()[3:5] for row in dense[2:]] == [["0-1", "1"]]
    rows = section(text, "Collectives in a step, of each stage alone")
    assert [row.split()[:6] for row in rows[2:]] == [
        ["all-gather", "0-1", "x", "y", "4", "1"],
        ["all", "all", "together", "2", "32", "KiB"],
    ]


def test_stages_that_differ_show_the_least_and_the_most():
    rows = section(explain(two_stages(3)), "Collectives in a step, of each stage alone")
    assert rows[2].split()[:8] == ["all-gather", "0-1", "x", "y", "4", "1-3", "16-48", "KiB"]
    assert rows[-1].startswith("two numbers: the least and the most")
    full = section(explain(two_stages(3), full=True), "Collectives in a step, stage by stage")
    assert [row.split()[:2] for row in full[2:]] == [
        ["all-gather", "1"],
        ["all-gather", "0"],
        ["all", "all"],
    ]


def test_equal_layers_in_equal_stages_are_a_short_text():
    plan = pipeline(8, 32, "2x p3.16xlarge", layers_a_stage=6)
    text = explain(plan)
    assert len(text.splitlines()) <= 70
    rows = section(text, "State of layers 0-47, mesh 2x1")
    assert [row for row in rows if "block_{0-47}/mlp/up/kernel" in row]
    assert [row for row in rows if "block_{0,47}/embedding/table" in row and row.endswith(" 0, 47")]
    full = explain(plan, full=True)
    for layer in range(48):
        assert f"\nlayer {layer} in stage {layer // 6}, mesh 2x1\n" in full
        assert f"0/opt/nu/block_{layer}/norm/scale" in full


def test_a_layer_with_another_layout_has_rows_of_its_own():
    plan = pipeline(2, 8, layers_a_stage=3)
    stage = plan.stages[0]
    first, *others = stage.layers[1].arguments
    changed = dataclasses.replace(
        stage.layers[1],
        arguments=(dataclasses.replace(first, layout=Layout(((), (), (1,)))), *others),
    )
    stages = (
        dataclasses.replace(stage, layers=(stage.layers[0], changed, stage.layers[2])),
        plan.stages[1],
    )
    rows = explain(dataclasses.replace(plan, stages=stages)).splitlines()
    query = [row.split() for row in rows if "query" in row]
    assert [(row[0], row[-1]) for row in query] == [
        ("0/opt/{mu,nu}/block_{0-5}/attention/query/kernel", "0-5"),
        ("0/params/block_{0,2-5}/attention/query/kernel", "2-5"),
        ("0/params/block_1/attention/query/kernel", "1"),
    ]


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        ("S0 R", "P(x, -)"),
        ("R S10", "P(-, (y, x))"),
        ("R sum:P01", "P(-) sum over x, y"),
        ("-", "P()"),
    ],
)
def test_layouts_with_names_of_axes(layout, text):
    assert layout_spec(parse_layout(layout), ("x", "y")) == text


def test_numbers_are_never_shortened():
    rows = [("x" * 200, "123456789"), ("y", "1")]
    lines = table(("name", "number"), rows, "lr")
    assert max(map(len, lines)) <= WIDTH
    assert lines[2].endswith("  123456789")
    assert lines[3].startswith("y ")
    assert lines[3].endswith(" 1")


def test_units_are_readable():
    assert bytes_text(0) == "0 B"
    assert bytes_text(1536) == "1.5 KiB"
    assert bytes_text(16 * 2**30) == "16 GiB"
    assert bytes_text(1000 * 2**20) == "1000 MiB"
    assert bytes_text(999.7 * 2**20) == "0.976 GiB"
    assert bytes_text(999.4 * 2**20) == "999 MiB"
    assert flop_text(2e9) == "2 GFLOP"
    assert flop_text(1.5e16) == "15 PFLOP"
    assert seconds_text(0) == "0 s"
    assert seconds_text(2.5e-6) == "2.5 us"
    assert seconds_text(0.0123) == "12.3 ms"
    assert seconds_text(12.5) == "12.5 s"
