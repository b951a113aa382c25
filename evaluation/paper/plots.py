"""Figures as pictures, with matplotlib."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from evaluation.paper.figures import Figure
from evaluation.paper.tables import Results
from meshwise.errors import PlanError

_PETA = 1e15
_INCHES = (8.0, 4.0)
_BAR_SHARE = 0.8
_EMPTY = "x"


def draw(figure: Figure, results: Results, stem: Path) -> tuple[Path, ...]:
    """Write a figure of rates as `STEM.svg` and `STEM.png`.

    Args:
        figure: What is shown.
        results: By setting and method.
        stem: The files without their endings; their folder exists.

    Raises:
        PlanError: matplotlib is not installed.
    """
    return save_picture(figure.name, stem, lambda axes: _bars(axes, figure, results))


def save_picture(name: str, stem: Path, paint: Callable[[Any], None]) -> tuple[Path, ...]:
    """Write a picture as `STEM.svg` and `STEM.png`.

    Args:
        name: What identifiers inside the file depend on.
        stem: The files without their endings; their folder exists.
        paint: Draws on the axes it is given.

    Raises:
        PlanError: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure as Picture
    except ImportError as error:
        raise PlanError(
            f"pictures need matplotlib ({error}); install meshwise[plots], or ask for tables only"
        ) from error
    # Without a date and with fixed names inside, equal results give equal files.
    with matplotlib.rc_context({"svg.hashsalt": name}):
        picture = Picture(figsize=_INCHES, layout="constrained")
        paint(picture.subplots())
        files = (stem.with_suffix(".svg"), stem.with_suffix(".png"))
        picture.savefig(files[0], metadata={"Date": None})
        picture.savefig(files[1], dpi=120, metadata={"Software": None})
    return files


def _bars(axes: Any, figure: Figure, results: Results) -> None:
    """Bars of the settings and methods that have a result."""
    settings = [s for s in figure.settings if any((s.name, m) in results for m in figure.methods)]
    methods = [m for m in figure.methods if any((s.name, m) in results for s in settings)]
    width = _BAR_SHARE / len(methods)
    for k, method in enumerate(methods):
        heights = [_rate(results, s.name, method) for s in settings]
        places = [i + (k + 0.5) * width - _BAR_SHARE / 2 for i in range(len(heights))]
        axes.bar(places, heights, width, label=method)
        for s, place, height in zip(settings, places, heights, strict=True):
            if (s.name, method) in results and not height:
                axes.annotate(_EMPTY, (place, 0), ha="center", va="bottom")
    axes.set_xticks(range(len(settings)), [f"{s.name}\n{s.num_devices} GPU" for s in settings])
    axes.set_ylabel("PFLOP/s, simulated")
    axes.set_title(f"{figure.title} ({_EMPTY}: no plan)")
    axes.legend(loc="upper left")


def _rate(results: Results, setting: str, method: str) -> float:
    found = results.get((setting, method))
    return found.flop_per_s / _PETA if found is not None else 0.0
