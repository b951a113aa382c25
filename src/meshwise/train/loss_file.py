"""Losses of a run as a CSV file: a line for each step, written as it goes."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Self, TextIO

import jax
import jax.numpy as jnp

from meshwise.jax_compat.jaxprs import PyTree
from meshwise.system.atomic_file import write_atomically

FILE = "losses.csv"
_STEP, _LOSS = "step", "loss"
_Row = Mapping[str, object]


def metrics_in(result: PyTree) -> dict[str, jax.Array]:
    """Return the real scalars that a step returns beside its loss, by name.

    Args:
        result: What the step returns beside its state: the loss, or a mapping that has it.
    """
    if not isinstance(result, Mapping):
        return {}
    found: dict[str, jax.Array] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(dict(result)):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name == _LOSS or leaf.shape or not _is_real(leaf):
            continue
        if name in found:
            # A key with a slash, as `a/b`, beside `b` below `a`.
            name = jax.tree_util.keystr(path)
        # The first column has the name of the number of the step.
        found[f"{name} (metric)" if name == _STEP else name] = leaf
    return found


class LossFile:
    """The file of a run: steps, losses and metrics with all their digits; a context manager.

    What cannot be written is told by `failure`; no run ends for it.
    """

    def __init__(self, folder: Path, losses: Sequence[float]) -> None:
        """Keep the lines of the steps that are done, and drop all others.

        Args:
            folder: Of the run.
            losses: Losses of the steps that are done; a step without its line gets one, without
                metrics.
        """
        self.failure = ""
        self._path = folder / FILE
        self._file: TextIO | None = None
        known = self._known() if losses else {}
        self._rows: list[_Row] = [_row(known, n, loss) for n, loss in enumerate(losses, 1)]
        names = (name for row in self._rows for name in row)
        self._columns = list(dict.fromkeys((_STEP, _LOSS, *names)))
        self._begin()

    def __enter__(self) -> Self:
        """Return the file."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the file."""
        self._close()

    def add(self, step: int, loss: float, metrics: Mapping[str, jax.Array]) -> None:
        """Write the line of a step.

        Args:
            step: Its number, counted from 1.
            loss: Its loss.
            metrics: Scalars by name.
        """
        values: dict[str, float | int] = {n: x.item() for n, x in jax.device_get(metrics).items()}
        row = {_STEP: step, _LOSS: loss, **values}
        self._rows.append(row)
        new = [name for name in row if name not in self._columns]
        if new or self._file is None:
            self._columns += new
            self._begin()
            return
        try:
            csv.DictWriter(self._file, self._columns).writerow(row)
            self._file.flush()
        except OSError as error:
            self._fail(error)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self) -> None:
        """Write all lines that there are, and open the file for more."""
        self._close()
        text = StringIO()
        writer = csv.DictWriter(text, self._columns)
        writer.writeheader()
        writer.writerows(self._rows)
        try:
            write_atomically(self._path, text.getvalue())
            self._file = self._path.open("a", newline="", encoding="utf-8")
            self.failure = ""
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self.failure = f"{self._path} is not written: {error.strerror or error}"
        self._file = None  # The next step tries to write all lines anew.

    def _known(self) -> dict[int, dict[str, str]]:
        """Return the lines of the file by step; none if it is not there or holds something else."""
        try:
            with self._path.open(newline="", encoding="utf-8") as file:
                # A run that was killed may have left a part of a line, and so of a number.
                lines = [line for line in file if line.endswith("\n")]
            rows = list(csv.DictReader(lines))
            return {int(row[_STEP]): row for row in rows if None not in row}
        except (OSError, ValueError, KeyError, TypeError, csv.Error):
            return {}


def _row(known: Mapping[int, dict[str, str]], step: int, loss: float) -> _Row:
    """Return the line of a step that is done: that of the file, if it says the same loss."""
    row = known.get(step, {})
    if row.get(_LOSS) == str(loss):
        return row
    return {_STEP: step, _LOSS: loss}


def _is_real(leaf: jax.Array) -> bool:
    kinds = (jnp.floating, jnp.integer, jnp.bool_)
    return any(jnp.issubdtype(leaf.dtype, kind) for kind in kinds)
