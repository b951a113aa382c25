"""Records of layers, each under a key, kept in memory, and in files for later processes.

The key of a record holds everything that its facts follow from: the layer's graph, the mesh with
the numbers of its links and devices, the options of planning, and `computed_by`: the sources of
Meshwise, NumPy and the machine.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from meshwise.cluster.mesh import LogicalMesh
from meshwise.inter.cost_table.record_files import read_record, written_record
from meshwise.inter.layer_cost.layer_record import LayerRecord
from meshwise.intra.options import IntraOptions
from meshwise.pieces.piece import PieceGraph
from meshwise.system.identity import Same
from meshwise.system.result_files import ResultFiles


class _Kept(NamedTuple):
    """A record and how much was known when it was read."""

    record: LayerRecord
    size: int


class LayerRecords:
    """Records of layers; `save` writes those with new facts."""

    def __init__(self, files: ResultFiles | None = None, computed_by: str = "") -> None:
        """Begin without any record.

        Args:
            files: Where records are kept; None: only in memory.
            computed_by: What computes the facts: sources, NumPy, machine; part of each key.
        """
        self._files, self._computed_by = files, computed_by
        self._known: dict[str, _Kept] = {}
        self._pieces: dict[Same, str] = {}

    def of(self, piece: PieceGraph, mesh: LogicalMesh, options: IntraOptions) -> LayerRecord:
        """Return the record of a layer on a mesh, to be added to.

        Args:
            piece: The layer.
            mesh: Where it runs.
            options: How it is planned.
        """
        key = "\n".join((self._computed_by, repr(mesh), repr(options), self._digest(piece)))
        if key not in self._known:
            data = None if self._files is None else self._files.read(key)
            record = LayerRecord() if data is None else read_record(data)
            self._known[key] = _Kept(record, record.size())
        return self._known[key].record

    def save(self) -> None:
        """Write records with new facts, and keep the folder within its bound."""
        if self._files is None:
            return
        for key, (record, size) in self._known.items():
            if record.size() > size:
                self._files.write(key, written_record(record))
                self._known[key] = _Kept(record, record.size())
        self._files.trim()

    def _digest(self, piece: PieceGraph) -> str:
        """Return a text that is the same for two layers only if they are equal."""
        same = Same(piece)
        if same not in self._pieces:
            self._pieces[same] = hashlib.sha256(repr(piece).encode()).hexdigest()
        return self._pieces[same]
