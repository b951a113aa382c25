"""The page of a plan: what is in it, how large it is, and that names stay text."""

from __future__ import annotations

import dataclasses
import html.parser
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from doubles.golden_plans import golden_plan
from doubles.pipelines import pipeline, with_memory
from meshwise.baselines.rival_method import RivalMethod, StepParts
from meshwise.cli import main
from meshwise.cli.option_names import shown
from meshwise.graph.layout import Layout
from meshwise.plan.plan import Plan
from meshwise.report.html.page import plan_page
from meshwise.report.html.sharding import common_name, folded
from meshwise.simulate.plan import simulate_plan
from meshwise.units import GIB, bytes_unit, seconds_text

EVIL = "</script><script>alert('x')</script>\"&\ud800"
VOID = {"meta", "link", "rect", "path"}
# Colours of the tasks; in a picture of 16 stages that shows a part, at least so many tasks.
FORWARD = '<rect class="F"'


class Reader(html.parser.HTMLParser):
    """Checks that tags nest; collects them, texts and what could be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        known = dict(attrs)
        self.links += [str(known[a]) for a in ("src", "href", "xlink:href") if a in known]
        self.ids += [str(known["id"])] if "id" in known else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    assert len(set(reader.ids)) == len(reader.ids)
    return reader


@pytest.fixture(scope="module")
def large() -> Plan:
    return pipeline(16, 256, "8x p3.16xlarge")


@pytest.fixture(scope="module")
def large_page(large: Plan) -> str:
    return plan_page(large)


def test_a_small_pipeline_is_drawn_whole() -> None:
    plan = pipeline(4, 16, "2x p3.16xlarge")
    page = plan_page(plan)
    reader = read(page)
    text = " ".join(reader.text)
    for part in ("hand-made", "2x p3.16xlarge", "Memory over time", "Layout of each layer",
                 "On the cluster", "16 micro-batches",
                 "No plan of this space is predicted to be more than"):  # fmt: skip
        assert part in text
    assert page.count(FORWARD) == page.count('<rect class="B"') == 4 * 16
    # Both ways between neighbours.
    assert page.count('<rect class="act"') == page.count('<rect class="grad"') == 3 * 16
    assert "The first" not in text
    # Every device is a square.
    assert len(re.findall(r"host \d, device \d: stage \d", page)) == 16
    # Pictures are named for readers of screens.
    assert page.count("<title id=") == page.count("<desc id=") == page.count('role="img"') == 8


def test_a_mesh_of_several_stages_shows_all_of_them() -> None:
    plan = golden_plan("gpt-two-stages")
    first, second = plan.stages
    # Both on the devices of the first, as in a V.
    shared = dataclasses.replace(
        second, submesh=first.submesh, first_device=first.first_device, mesh=first.mesh
    )
    page = plan_page(
        dataclasses.replace(
            plan,
            schedule="interleaved-1f1b",
            stages=(first, shared),
            collectives=(),
            num_microbatches=4,
        )
    )
    assert "Each square is a device with the number of its stage, or of its stages" in page
    assert re.findall(r"device 0: stage ([\d, ]+)", page)[0] == "0, 1"
    cluster = page[page.index("On the cluster") :].partition("</svg>")[0]
    numbers = re.findall(r'<text class="on c small"[^>]*>(\d+)<', cluster)
    assert numbers[:2] == ["0", "1"]
    assert "tasks of its first one are darker" in page
    assert 'class="F later"' in page


def test_a_page_fetches_nothing(large_page: str) -> None:
    reader = read(large_page)
    assert reader.links == ["data:,"]
    assert "url(" not in large_page
    assert "@import" not in large_page
    assert not re.search(r"https?://", large_page)


def test_a_large_pipeline_shows_an_overview_and_both_ends(large: Plan, large_page: str) -> None:
    assert len(large_page) < 2_000_000
    text = " ".join(read(large_page).text)
    assert "There are too many tasks to draw each" in text
    assert "The first" in text
    assert "The last" in text
    assert 16 * 20 < large_page.count(FORWARD) < 5000
    # The ends of the step are in the windows, the middle is not.
    assert "forward 0, stage 0:" in large_page
    assert "backward 255, stage 0:" in large_page
    assert "forward 128, stage 0:" not in large_page
    works = [float(share) for share in re.findall(r'="stage \d+ is busy ([\d.]+)%', large_page)]
    assert len(works) == 16
    assert sum(works) / 16 == pytest.approx(100 * (1 - large.bubble_share), abs=0.05)
    assert "Between the least (dark) and the most (light)" in text


def test_names_stay_text() -> None:
    plan = pipeline(2, 4)
    layer = plan.stages[0].layers[0]
    first, *others = layer.arguments
    first = dataclasses.replace(first, name=EVIL + first.name)
    layers = (
        dataclasses.replace(layer, arguments=(first, *others)),
        *plan.stages[0].layers[1:],
    )
    mesh = plan.stages[0].mesh
    axes = (dataclasses.replace(mesh.axes[0], name=EVIL), *mesh.axes[1:])
    stage = dataclasses.replace(
        plan.stages[0], layers=layers, mesh=dataclasses.replace(mesh, axes=axes)
    )
    cluster = dataclasses.replace(plan.cluster, name=EVIL)
    page = plan_page(
        dataclasses.replace(
            plan,
            model=EVIL,
            space=EVIL,
            tied=(EVIL,),
            cluster=cluster,
            stages=(stage, plan.stages[1]),
        )
    )
    reader = read(page)
    assert reader.tags.count("script") == 1
    assert page.encode("utf-8").count(b"&lt;/script&gt;") >= 6


def without_time(plan: Plan) -> Plan:
    """Stages that take no time, and transfers that only wait for the link."""
    stages = tuple(
        dataclasses.replace(s, forward_s=0.0, backward_s=0.0, once_s=0.0, send_bytes=0)
        for s in plan.stages
    )
    host = plan.cluster.host
    link = dataclasses.replace(host.link, latency_s=0.0)
    group = dataclasses.replace(plan.cluster.groups[0], host=dataclasses.replace(host, link=link))
    cluster = dataclasses.replace(plan.cluster, groups=(group,))
    return dataclasses.replace(plan, stages=stages, cluster=cluster, step_time_s=0.0)


def test_the_pages_of_extremes() -> None:
    for plan in (
        pipeline(1, 1, "1x p3.8xlarge"),
        pipeline(2, 600, "64x p3.16xlarge", schedule="gpipe"),
        pipeline(64, 50, "8x p3.16xlarge", 1),
        without_time(pipeline(2, 8)),
        without_time(pipeline(2, 512)),
        pipeline(4, 8, "1x p3.8xlarge", schedule="zero-bubble-h1"),
        pipeline(4, 8, "1x p3.8xlarge", 30, schedule="eager-1f1b", hides_transfers=True),
    ):
        page = plan_page(plan)
        read(page)
        assert "nan" not in page.lower().replace("role", "")
        assert len(page) < 2_000_000
    # Equal neighbours are drawn as one.
    many = plan_page(pipeline(2, 4, "64x p3.16xlarge"))
    assert "hosts 0-31, each" in many
    assert "hosts 32-63, each" in many


def test_memory_is_drawn_in_a_unit_of_its_size() -> None:
    plan = golden_plan("gpt-two-stages")
    peaks = simulate_plan(plan).timeline.peak_bytes
    unit = bytes_unit(max(peaks))[1]
    assert unit != "GiB"
    found = re.findall(rf'<text class="m e"[^>]*>{unit}</text>', plan_page(plan))
    assert len(found) == len(peaks)


def test_a_limit_far_above_the_peaks_is_said_and_not_drawn() -> None:
    near = plan_page(with_memory(pipeline(2, 4), 8 * GIB, 8 * GIB))
    assert near.count('<path class="limit"') == 2
    assert "The dashed line is what a device has." in near
    far = plan_page(with_memory(pipeline(2, 4), 80 * GIB, 80 * GIB))
    assert '<path class="limit"' not in far
    assert "A device has 80 GiB, far above the picture." in far
    both = plan_page(with_memory(pipeline(2, 4), 8 * GIB, 80 * GIB))
    assert both.count('<path class="limit"') == 1
    assert "where that is not far above the picture" in both


def test_the_page_says_when_other_numbers_of_micro_batches_were_not_searched() -> None:
    plan = golden_plan("gpt-two-stages")
    told = "may be faster: leave out --microbatches"
    (first, *_) = plan.tried
    assert told in plan_page(dataclasses.replace(plan, tried=(first,)))
    assert told not in plan_page(dataclasses.replace(plan, tried=(first, (64, 1.0))))


def test_what_does_not_fit_is_marked() -> None:
    plan = with_memory(pipeline(2, 4), GIB, 16 * GIB)
    page = plan_page(plan)
    read(page)
    numbers, remedy = plan.explain().splitlines()[:2]
    assert numbers.startswith("does not fit: stage 0 needs 5.25 GiB, a device of 1x p3.8xlarge ")
    assert f'<main><p class="over" role="alert">D{numbers[1:]}. {remedy}</p>' in page
    # The predicted and the simulated peak, two devices, and the chart below and above its limit.
    assert (
        page.count('<span class="over">5.25 GiB</span>') == page.count('<span class="over">') == 2
    )
    assert page.count('<rect class="over"') == page.count("does not fit into its memory") == 2
    assert page.count('<path class="over"') == 2
    assert "red where the stage does not fit" in page
    many = plan_page(with_memory(pipeline(2, 600), GIB, 16 * GIB))
    read(many)
    assert many.count('<path class="over"') == 3


def test_what_fits_says_what_is_free() -> None:
    page = plan_page(with_memory(pipeline(2, 4), 8 * GIB, 6 * GIB))
    text = "Fits: 1.25 GiB of 6 GiB are free on the fullest device (stage 1)."
    assert f'<main><p class="fits">{text}</p>' in page
    assert 'class="over"' not in page


def test_a_plan_of_one_mesh(tmp_path: Path) -> None:
    plan = golden_plan("list-of-weights")
    page = plan_page(plan)
    text = " ".join(read(page).text)
    assert "DataParallel()" in text
    assert "are free on the fullest device." in text
    assert "Layout of each argument" in text
    assert "w[*] (3)" in text
    assert "Collectives in a step" in text
    out = tmp_path / "plan.html"
    run = CliRunner().invoke(main, ["explain", "-", "--html", str(out)], input=plan.to_json())
    assert run.exit_code == 0, run.output
    assert out.read_text() == plan_page(shown(plan, "plan"))
    large = dataclasses.replace(plan.stages[0], resident_bytes=0, temporary_bytes=5 * GIB)
    page = plan_page(dataclasses.replace(plan, stages=(large,)))
    read(page)
    assert '<main><p class="over" role="alert">Does not fit: the plan needs 5 GiB, ' in page


def test_the_command_writes_the_page_of_a_pipeline(tmp_path: Path) -> None:
    plan = pipeline()
    out = tmp_path / "plan.html"
    run = CliRunner().invoke(main, ["explain", "-", "--html", str(out)], input=plan.to_json())
    assert run.exit_code == 0, run.output
    assert out.read_text() == plan_page(plan)
    missing = tmp_path / "missing" / "plan.html"
    run = CliRunner().invoke(main, ["explain", "-", "--html", str(missing)], input="{}")
    assert run.exit_code == 1
    assert "make it first" in run.output


def test_rivals_stand_beside_the_plan() -> None:
    plan = pipeline(2, 4)
    rivals = (
        RivalMethod(name="slow & safe", how="4 micro-batches", step_time_s=2 * plan.step_time_s,
                    parts=StepParts(computes_s=1.0, collectives_s=9.0), peak_bytes=GIB),
        RivalMethod(name="large", peak_bytes=99 * GIB),
        RivalMethod(name="odd", how="has no setting for a batch of 7"),
    )  # fmt: skip
    page = plan_page(plan, rivals=rivals)
    read(page)
    section = page[page.index("Beside other methods") :].partition("<h2>")[0]
    rows = [re.sub(r"<[^>]*>", "|", row) for row in section.split("<tr>")[2:]]
    cells = [[cell for cell in row.split("|") if cell] for row in rows]
    step = 2 * plan.step_time_s
    assert cells[0][:3] == [
        "this plan",
        f"schedule {plan.schedule}",
        seconds_text(plan.step_time_s),
    ]
    assert "A rival with stages has its own schedule, named beside it." in section
    assert cells[1] == [
        "slow &amp; safe",
        "4 micro-batches",
        seconds_text(step),
        "+100.0%",
        "most in collectives",
        "1 s",
        "9 s",
        "-",
        "-",
        "1 GiB",
    ]
    assert cells[2] == ["large", "does not fit", "at least 99 GiB"]
    assert cells[3] == ["odd", "has no setting for a batch of 7", "no plan", "-"]
    assert "A rival is faster where" not in section
    fast = dataclasses.replace(rivals[0], step_time_s=plan.step_time_s / 2)
    page = plan_page(plan, rivals=(fast,))
    assert "<strong>slow &amp; safe takes 50.0% less time.</strong> A rival is faster where" in page
    whole = dataclasses.replace(fast, num_microbatches=1)
    told = f"less time, with 1 micro-batch where this plan has {plan.num_microbatches}.</strong>"
    assert (told in plan_page(plan, rivals=(whole,))) == (plan.num_microbatches != 1)
    assert "Beside other methods" not in plan_page(plan)


def test_moments_share_the_row_of_their_parameter() -> None:
    whole, split = Layout(((), ())), Layout(((0,), ()))
    found = folded(
        [
            (("p", ".a", ".kernel"), (4, 4), split),
            (("p", ".b", ".kernel"), (4, 4), split),
            (("p", ".a", ".bias"), (8, 8), whole),
            (("mu", ".a", ".kernel"), (4, 4), split),
            (("mu", ".b", ".kernel"), (4, 4), whole),
            (("mu", ".a", ".bias"), (8, 8), whole),
        ]
    )
    rows = [(t.name, t.heads, t.layout) for t in found]
    assert rows == [
        (".a.kernel", ("p", "mu"), split),
        ("p.b.kernel", (), split),
        (".a.bias", ("p", "mu"), whole),
        ("mu.b.kernel", (), whole),
    ]


def test_names_are_left_open_where_they_differ() -> None:
    names = [("s", f"['block_{k}']", "['w_2']") for k in (1, 10)]
    assert common_name(names) == ("s", "['block_*']", "['w_2']")
    assert common_name([("a_1",)]) == ("a_1",)
    # A key of the user that looks like a member of a stack, beside such a member.
    assert common_name([("s", "['w[0]']"), ("s", "['w']", "[1]")]) == ("s['w[*]']",)


def test_names_are_those_of_the_step() -> None:
    plan = pipeline(2, 4)
    spelling = (("0", "state"), ("0/params", ".params"), ("0/opt", ".opt"), ("1", "batch"))
    named = dataclasses.replace(plan, spelling=spelling, tied=("0/params/embedding/table",))
    page = plan_page(named)
    text = " ".join(read(page).text)
    for name in (
        "Each of state.params, state.opt['mu'], state.opt['nu'].",
        "['block_*']['attention']['query']['kernel']",
        "Parameters that several layers read: state.params['embedding']['table'].",
    ):
        assert name in text
    assert "<code>0/params/block_0/attention/query/kernel</code> is <code>state.params[" in page
    # A plan of an earlier version does not know it.
    old = plan_page(plan)
    assert "Each of 0/params/" in old
    assert "Names are written as in the step" not in old
