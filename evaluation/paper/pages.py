"""Pages in Markdown, one a figure, and an index; from results alone, nothing is planned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from evaluation.paper.figures import FIGURES, Figure
from evaluation.paper.plots import draw
from evaluation.paper.result import Result
from evaluation.paper.settings import FLOAT16_FLOP_PER_S, SETTINGS
from evaluation.paper.store import code_digest
from evaluation.paper.tables import (
    Results,
    by_name,
    defects,
    margins,
    markdown,
    plan_table,
    planning_table,
    rate_table,
    way_table,
)
from meshwise.system.atomic_file import write_atomically
from meshwise.units import TERA

_SIMULATED = (
    "Step times of ours on this page are **simulated**: plans and their costs come from a "
    "description of the cluster, and none of these pipelines has run. Seconds of planning are "
    "measured. What the paper published was measured by its authors."
)


def figure_page(figure: Figure, results: Results, pictures: Sequence[str] = ()) -> str:
    """One figure.

    Args:
        figure: Which.
        results: By setting and method.
        pictures: Files to show, relative to the page.
    """
    parts = [f"# {figure.title}", _SIMULATED]
    parts.append("**Published:** " + " ".join(figure.published))
    parts += [f"![{figure.title}]({name})" for name in pictures]
    match figure.shows:
        case "rate":
            parts.append("PFLOP/s over all GPUs by the paper's count, and the step:")
            parts.append(rate_table(figure, results))
            rows = [(s, m, f"{ratio:.3f}") for s, m, ratio in margins(figure, results)]
            if rows:
                parts.append("Step of each method over ours:")
                parts.append(markdown(("setting", "method", "step / ours"), rows))
            parts.append("What was chosen:")
            parts.append(plan_table(figure, results))
        case "planning":
            parts.append(planning_table(figure, results))
        case "ways":
            parts.append(
                "Step with each way to send what crosses between stages, the plan being the same; "
                "gathering keeps the receiving stage from computing:"
            )
            parts.append(way_table(figure, results))
        case _:
            parts.append(plan_table(figure, results))
            parts += _plans(figure, results)
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _plans(figure: Figure, results: Results) -> list[str]:
    texts: list[str] = []
    for s in figure.settings:
        for m in figure.methods:
            found = results.get((s.name, m))
            if found is not None and found.answer.text:
                texts.append(f"## {s.name}, {m}\n\n```\n{found.answer.text.rstrip()}\n```")
    return texts


def index_page(results: Results) -> str:
    """Return what there is, what is missing, and where ours is above another method."""
    rows = [
        (
            f"[{f.title}]({f.name}.md)",
            f"{_num_run(f, results)} of {len(f.settings) * len(f.methods)}",
        )
        for f in FIGURES.values()
    ]
    old = sorted({r.code for r in results.values()} - {code_digest()})
    days = sorted({r.created[:10] for r in results.values()})
    limited = sorted(
        {
            f"{r.setting} (B {', '.join(map(str, r.microbatches))})"
            for r in results.values()
            if r.microbatches is not None and r.microbatches != SETTINGS[r.setting].microbatches
        }
    )
    parts = [
        "# The paper's evaluation, in simulation",
        _SIMULATED,
        "`python -m evaluation paper --out docs/paper/results --pages docs/paper` plans what is "
        "missing and writes these pages. All methods have the same layers, costs, memory options "
        f"and simulator. Products in float16 reach {FLOAT16_FLOP_PER_S / TERA:.4g} TFLOP/s, from "
        "one published run ([anchor](../measurements/anchor.md)); all else is the p3.16xlarge of "
        "the catalog. [Where ours and theirs differ](../measurements/paper.md), and why.",
        markdown(("figure", "results"), rows),
    ]
    if days:
        parts.append(f"Planned on {' to '.join(dict.fromkeys((days[0], days[-1])))}.")
    if old:
        parts.append(f"Some results are of other code than that of these pages: {', '.join(old)}.")
    if limited:
        parts.append("Not all values of B were tried for: " + "; ".join(limited) + ".")
    found = defects(results)
    parts.append("## Where ours is above another method")
    parts.append("\n".join(f"- {line}" for line in found) if found else "Nowhere in these results.")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _num_run(figure: Figure, results: Results) -> int:
    return sum((s.name, m) in results for s in figure.settings for m in figure.methods)


def write_pages(
    folder: Path, found: Iterable[Result], figures: Iterable[Figure], *, pictures: bool
) -> tuple[Path, ...]:
    """Write the pages of figures and the index.

    Args:
        folder: Where; made if it is not there.
        found: All results.
        figures: Whose pages.
        pictures: Whether to draw, too.

    Raises:
        PlanError: pictures are wanted and matplotlib is not installed.
    """
    results = by_name(r for r in found if r.setting in SETTINGS)
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for figure in figures:
        drawn: tuple[Path, ...] = ()
        if pictures and figure.shows == "rate" and _num_run(figure, results):
            drawn = draw(figure, results, folder / figure.name)
        shown = [file.name for file in drawn if file.suffix == ".svg"]
        page = folder / f"{figure.name}.md"
        write_atomically(page, figure_page(figure, results, shown))
        files += [page, *drawn]
    index = folder / "README.md"
    write_atomically(index, index_page(results))
    return (*files, index)
