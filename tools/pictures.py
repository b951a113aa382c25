"""Draw the pictures of the documentation, from plans and simulations made on the spot.

`python tools/pictures.py` writes `docs/pictures`.  The picture of a whole page needs Chromium and
stays as it was without it; most others are the drawings of `meshwise plan --html`.
"""

from __future__ import annotations

import importlib.resources
import itertools
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from click.testing import CliRunner

from meshwise.cli import main as meshwise
from meshwise.plan.plan import Plan
from meshwise.report.html.gantt import gantt
from meshwise.report.html.markup import label, picture, rect, stage_rules
from meshwise.report.html.page import plan_page
from meshwise.schedules.registry import choices
from meshwise.simulate.plan import Changes, simulate_plan

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
# The plan of the pictures, with few micro-batches so that each can be seen.
COMMAND = (
    *("plan", "--model", "gpt-6.7b", "--cluster", "4x p3.16xlarge", "--batch", "64"),
    *("--microbatches", "16", "--schedule", "1f1b", "--stages", "4", "--remat", "none"),
)
SCHEDULES = ("gpipe", "1f1b", "zero-bubble-h1")
_NUM_MICROBATCHES = 8
_PAGE_SIZE = (1240, 1500)

# Layouts of a matrix on a mesh of two axes of two devices: the axes that split rows and columns.
LAYOUTS = {
    "P(-, -)": ((), ()),
    "P(x, -)": ((0,), ()),
    "P(x, y)": ((0,), (1,)),
    "P(-, (x, y))": ((), (0, 1)),
}


def planned() -> Plan:
    """Return the plan of the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        ran = CliRunner().invoke(meshwise, [*COMMAND, "--out", str(file)])
        if ran.exit_code:
            raise SystemExit(ran.output)
        return Plan.from_json(file.read_text(encoding="utf-8"))


def pictures(plan: Plan) -> dict[str, str]:
    """Return the drawings, as text by name of their file.

    Args:
        plan: A plan of several stages.
    """
    drawings = re.findall(r"<svg viewBox.*?</svg>", plan_page(plan), re.DOTALL)
    named = {found[1]: svg for svg in drawings if (found := re.search(r'id="(\w+)-t"', svg))}
    drawn = {name: named[name] for name in ("cluster", "step", "layers", "memory0")}
    drawn["layouts"] = _layouts()
    for name in SCHEDULES:
        changes = Changes(schedule=choices()[name], num_microbatches=_NUM_MICROBATCHES)
        timeline = simulate_plan(plan, changes).timeline
        drawn[name] = gantt(name, timeline, 0.0, timeline.step_time_s)
    return {f"{name}.svg": _standalone(svg) for name, svg in drawn.items()}


def photograph(plan: Plan, file: Path, chromium: str) -> None:
    """Write the plan's page as Chromium shows it.

    Args:
        plan: The plan.
        file: The picture, a PNG.
        chromium: The browser.
    """
    width, height = _PAGE_SIZE
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "plan.html"
        page.write_text(plan_page(plan), encoding="utf-8")
        command = [
            *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--hide-scrollbars", f"--window-size={width},{height}"),
            *(f"--user-data-dir={folder}/profile", f"--screenshot={file}", page.as_uri()),
        ]
        subprocess.run(command, check=True, capture_output=True)


def _layouts() -> str:
    """Draw one matrix on four devices, in each of `LAYOUTS`; filled is what a device holds."""
    side, across, down, left, top = 68, 108, 90, 110, 26
    parts: list[str] = []
    for column, (x, y) in enumerate(itertools.product(range(2), range(2))):
        start = left + column * across
        parts.append(label(start, 14, f"x={x}, y={y}"))
        for row, (rows, columns) in enumerate(LAYOUTS.values()):
            low = top + row * down
            (first, height), (begin, width) = (_part(axes, (x, y)) for axes in (rows, columns))
            tile = (start + begin * side, low + first * side, width * side, height * side)
            parts += [rect((start, low, side, side), "hole"), rect(tile, "tile-one")]
    for row, name in enumerate(LAYOUTS):
        parts.append(label(0, top + row * down + side / 2 + 4, name))
    size = (left + 4 * across, top + len(LAYOUTS) * down)
    return picture("layouts", "A matrix on four devices", ", ".join(LAYOUTS), size, parts)


def _part(axes: tuple[int, ...], device: tuple[int, int]) -> tuple[float, float]:
    """Return where the part of a dim begins that a device holds, and its size, of 1."""
    number = 0
    for axis in axes:
        number = 2 * number + device[axis]
    size = 0.5 ** len(axes)
    return number * size, size


def _standalone(svg: str) -> str:
    """Return a drawing of a page as a file: in the page's colours, on the page's ground."""
    source = importlib.resources.files("meshwise.report.html").joinpath("page.html")
    page = source.read_text(encoding="utf-8")
    rules = re.findall(
        r"^:root \{.*?^\}|^@media .*?^\}|^svg [.t].*?$", page, re.DOTALL | re.MULTILINE
    )
    style = "\n".join([*rules, stage_rules(), "svg { font-family: system-ui, sans-serif; }"])
    found = re.match(r'<svg viewBox="0 0 (\S+) (\S+)"', svg)
    assert found is not None
    width, height = (float(side) + 24 for side in found.groups())
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-12 -12 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}"'
    )
    ground = '<rect x="-12" y="-12" width="100%" height="100%" style="fill: var(--paper)"/>'
    text = head + svg[found.end() :]
    return text.replace("<title", f"<style>\n{style}\n</style>\n{ground}\n<title", 1) + "\n"


def main() -> None:
    """Write all pictures."""
    plan = planned()
    FOLDER.mkdir(exist_ok=True)
    for name, text in pictures(plan).items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("plan.png stays as it was: it needs Chromium")
    else:
        photograph(plan, FOLDER / "plan.png", chromium)


if __name__ == "__main__":
    main()
