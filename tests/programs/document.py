"""Writes `README.md`: `python -m programs.document` (in `tests/`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from programs.catalog import FAMILIES, Program, programs
from programs.ways import REFUSALS, WAYS

PATH = Path(__file__).parent / "README.md"
_HEADER = """# Programs

Written by `python -m programs.document` (in `tests/`) from `families/` and `refusals/`.

{count} training programs as users write them, with JAX alone or with
{libraries}.

`test_programs.py` runs each on one device under plain `jax.jit`, and with `mw.parallelize` on eight
virtual devices: as one mesh, with two micro-batches, in two stages, and with half of the memory (or
with as much as the refusal of that says to be enough). The numbers are those of one device, or
there is a typed error; its text, as the user sees it, is kept in `refusals/`. The devices' links
cost nothing, so that even these small programs are worth splitting. GAN, LoRA, batch norm, masked
language models and the optimizers of Optax stand in `examples/` and are tested there.

    pytest tests/programs                   # each program in one of the ways, and all refusals
    pytest tests/programs -m "slow or not slow"
    pytest tests/programs -m "slow or not slow" --update-goldens   # write the refusals anew
"""
_NAMES = {"one_mesh": "one mesh", "micro_batches": "micro-batches", "less_memory": "less memory"}


def _row(program: Program) -> str:
    found = (REFUSALS / program.refusal(way) for way in WAYS)
    cells = [f"[refused](refusals/{path.name})" if path.exists() else "runs" for path in found]
    return f"| `{program.name}` | {program.technique} | {' | '.join(cells)} |"


def _lines() -> Iterator[str]:
    listed = tuple(programs())
    libraries = sorted({name for program in listed for name in program.libraries})
    yield _HEADER.format(count=len(listed), libraries=", ".join(libraries))
    for path in sorted(FAMILIES.glob("*.py")):
        yield f"## `{path.stem}`\n"
        yield f"| program | technique | {' | '.join(_NAMES.get(way, way) for way in WAYS)} |"
        yield "|---" * (2 + len(WAYS)) + "|"
        yield from (_row(program) for program in listed if program.family == path.stem)
        yield ""


def document() -> str:
    """The text of the page."""
    return "\n".join(_lines()).rstrip() + "\n"


if __name__ == "__main__":
    PATH.write_text(document(), encoding="utf-8")
