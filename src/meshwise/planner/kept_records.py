"""What was found out about layers, kept in the user's cache for the next plan."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

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

    What becomes known is kept at the end of the block, also where the plan fails.  Where no folder
    can be written that is this user's own, and while sources change, nothing is kept.
    """
    computed_by, folder = _computed_by(), own_folder((user_cache(),), RECORDS)
    files = None if computed_by is None or folder is None else ResultFiles(folder, _MOST_BYTES)
    records = LayerRecords(files, computed_by or "")
    try:
        yield records
    finally:
        records.save()


def _computed_by() -> str | None:
    """Return what decides the last bit of a cost besides what is planned."""
    sources = sources_digest(Path(__file__).parents[1])
    return None if sources is None else repr((sources, np.__version__, compiled_for()))
