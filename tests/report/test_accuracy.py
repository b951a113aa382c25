"""What the page says of the accuracy of predictions stands in `docs/measurements`."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from doubles.golden_plans import golden_plan
from doubles.pipelines import pipeline
from meshwise.cluster.spec import ClusterSpec
from meshwise.report.accuracy import Finding, accuracy_of
from meshwise.report.html.page import plan_page

DOCS = Path(__file__).parents[2] / "docs" / "measurements"
# Dates and numbers, not those in names as H100 or v5e.
NUMBER = re.compile(r"(?<![\w.:])\d[\d.-]*\d|(?<![\w.:])\d\b")
DEVICES = (
    "virtual CPU", "V100-SXM2-16GB", "A100-SXM4-80GB", "H100-SXM5-80GB", "H200-SXM-141GB",
    "TPU v5e", "TPU v5p",
)  # fmt: skip


def plain(text: str) -> str:
    """Markdown without emphasis, in one line."""
    return " ".join(text.replace("**", "").split())


@pytest.mark.parametrize("device", DEVICES)
def test_every_number_stands_in_the_page_it_names(device: str) -> None:
    found = accuracy_of(device)
    assert found.memory.quotes
    for finding in (found.memory, found.time):
        quoted = ""
        for page, words in finding.quotes:
            assert plain(words) in plain((DOCS / page).read_text()), (page, words)
            quoted += f" {words}"
        for number in NUMBER.findall(finding.says):
            assert number in NUMBER.findall(quoted), (device, number)


def test_devices_are_found_by_any_of_their_names() -> None:
    for one, other in (
        ("NVIDIA H200", "H200-SXM-141GB"),
        ("TPU v5 lite", "TPU v5e"),
        ("TPU v5", "TPU v5p"),
        ("A100-SXM4-40GB", "A100-SXM4-80GB"),
    ):
        assert accuracy_of(one) == accuracy_of(other)
    unknown = accuracy_of("TPU v6e")
    assert unknown.memory == unknown.time == Finding(says="not compared on this device")


def test_the_page_has_that_of_its_devices() -> None:
    for plan in (pipeline(2, 4), golden_plan("list-of-weights")):
        page = plan_page(plan)
        text = re.sub("</?code>", "", page)
        device = plan.stages[0].mesh.device.name
        for finding in (accuracy_of(device).memory, accuracy_of(device).time):
            assert finding.says[1:].replace("`", "") in text
            assert f"docs/measurements/{finding.quotes[0][0]}" in page
    first, second = pipeline(2, 4).stages
    other = ClusterSpec.virtual("1x dgx-h100").device
    mesh = dataclasses.replace(second.mesh, device=other)
    mixed = dataclasses.replace(
        pipeline(2, 4), stages=(first, dataclasses.replace(second, mesh=mesh))
    )
    page = plan_page(mixed)
    assert f"memory, {first.mesh.device.name}" in page
    assert f"memory, {other.name}" in page
