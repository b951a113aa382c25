"""What was found out about layers, kept in the user's cache for the next plan."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from meshwise.inter.cost_table.layer_records import LayerRecords
from meshwise.kernels.folder import compiled_for
from meshwise.system.own_folder import own_folder
from meshwise.system.result_files import ResultFiles
from meshwise.system.sources import sources_digest
from meshwise.system.user_cache import RECORDS, user_cache

_MOST_BYTES = 256 * 2**20


@contextmanager
def kept_records() -> Generator[LayerRecords]:
    """Yield records of layers that begin with what earlier plans found out.

    What becomes known is written at the end of the block, also if the plan fails.  Nothing is kept
    if this user has no cache folder of their own to write, if a source of Meshwise changed since
    this process began, or if libraries do not say their versions.
    """
    folder = own_folder((user_cache(),), RECORDS)
    computed_by = None if folder is None else _computed_by()
    files = None if folder is None or computed_by is None else ResultFiles(folder, _MOST_BYTES)
    records = LayerRecords(files, computed_by or "")
    try:
        yield records
    finally:
        records.save()


def _computed_by() -> str | None:
    """Return what costs follow from, to the last bit, besides what is planned; None if unknown."""
    sources = sources_digest(Path(__file__).parents[1])
    try:
        libraries = [version(name) for name in ("numpy", "scipy", "highspy")]
    except PackageNotFoundError:  # as in one file with a whole program
        return None
    return None if sources is None else repr((sources, libraries, compiled_for()))
