"""Records of layers: what is written comes back, and only for what it was found out about."""

from __future__ import annotations

import dataclasses
import json
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshwise as mw
from hostile.bounds import bounded
from hostile.mutations import damaged, documents, json_of
from hostile.searches import COUNTS, search
from inter.layer_cost.test_run_costs import layers_of_perceptron
from meshwise.inter.cost_table.layer_records import LayerRecords
from meshwise.inter.cost_table.record_files import read_record, written_record
from meshwise.inter.layer_cost.footprint import Footprint
from meshwise.inter.layer_cost.layer_record import (
    LayerBounds,
    LayerRecord,
    PlanFacts,
    PriceKey,
    PriceRecord,
    Raised,
    Solved,
)
from meshwise.intra.options import IntraOptions
from meshwise.system.result_files import ResultFiles

MESH = mw.Cluster.virtual("1x p3.8xlarge").mesh((2,))
KEY = PriceKey(1 / 3, 4.0, 0.1, exact=False, seed=0)


def full_record() -> LayerRecord:
    """A record with all kinds of facts; numbers without a short decimal form among them."""
    return LayerRecord(
        is_possible=True,
        nodes=(3, -1),
        bounds=LayerBounds(
            loop_s=np.array([[1 / 3, np.inf], [2**-60, 5e-324]]),
            arriving_s=np.array([0.1, 0.2]),
            returning_s=np.array([0.3]),
            resident_bytes=1e9 / 7,
        ),
        plans={
            (1, 2, 3): PlanFacts(0.1 + 0.2, 1 / 7, footprint(1, 2, 3)),
            (): PlanFacts(0.0, np.inf, footprint(0, 0, 2**62)),
        },
        prices={
            KEY: PriceRecord(
                bound_s=np.array([[1 / 9, np.inf]]),
                raised={(0, 1): Raised(0.7, (1, 2, 3), 0.7), (1, 0): Raised(0.1, None, np.inf)},
                relaxed_s={(0, 0): 1 / 3},
                solved={(0, 0): Solved((4, 5), 0.2, 0.1), (1, 1): Solved(None, np.inf, np.inf)},
            ),
            PriceKey(0.0, 1.0, 1.0, exact=True, seed=7): PriceRecord(),
        },
    )


def footprint(*num_bytes: int) -> Footprint:
    resident, microbatch, temporary = num_bytes
    return Footprint(
        resident_bytes=resident,
        microbatch_bytes=microbatch,
        temporary_bytes=temporary,
        gradient_bytes=resident // 2,
    )


def test_what_is_written_comes_back_to_the_last_bit() -> None:
    record = full_record()
    found = read_record(written_record(record))
    assert written_record(found) == written_record(record)
    assert found.plans == record.plans
    assert found.nodes == record.nodes
    assert found.bounds is not None
    assert record.bounds is not None
    assert np.array_equal(found.bounds.loop_s, record.bounds.loop_s)
    prices, known = found.prices[KEY], record.prices[KEY]
    assert (prices.raised, prices.relaxed_s, prices.solved) == (
        known.raised,
        known.relaxed_s,
        known.solved,
    )
    assert found.size() == record.size()
    assert list(found.prices) == list(record.prices)


@pytest.mark.parametrize("count", COUNTS)
def test_what_is_no_record_is_an_empty_one(count: int) -> None:
    def check(data: bytes) -> None:
        with bounded():
            assert isinstance(read_record(data), LayerRecord)

    document = json.loads(written_record(full_record()))
    search(documents([document], json_of), check, count)
    search(damaged([json_of(document)]), check, count)
    assert read_record(b"[" * 10**6).size() == 0
    assert read_record(b"null").size() == 0


@pytest.fixture(scope="module")
def layers() -> Any:
    return layers_of_perceptron(2)


@pytest.fixture(scope="module")
def layer(layers: Any) -> Any:
    return layers.graph(0, 0, 2)


def test_a_record_serves_what_it_was_found_out_about(
    layers: Any, layer: Any, tmp_path: Path
) -> None:
    mesh, options = MESH, IntraOptions()
    records = LayerRecords(ResultFiles(tmp_path, 2**20), "1.0")
    records.of(layer, mesh, options).nodes = (1, 2)
    records.save()

    def nodes(layer: Any, mesh: Any, options: Any, computed_by: str = "1.0") -> Any:
        later = LayerRecords(ResultFiles(tmp_path, 2**20), computed_by)
        return later.of(layer, mesh, options).nodes

    assert nodes(layer, mesh, options) == (1, 2)
    axes = mesh.axes
    faster = (dataclasses.replace(axes[0], link_bytes_per_s=1e99), *axes[1:])
    device = dataclasses.replace(mesh.device, memory_bytes_per_s=1.0)
    others = [
        (layer, dataclasses.replace(mesh, axes=faster), options),
        (layer, dataclasses.replace(mesh, device=device), options),
        (layer, mesh, IntraOptions(seed=1)),
        (layer, mesh, IntraOptions(objective="alpa")),
        (dataclasses.replace(layer, num_microbatches=4), mesh, options),
        (layers.graph(0, 0, 4), mesh, options),
        (layers.graph(1, 1, 2), mesh, options),
        (layer, mesh, options, "1.1"),
    ]
    for other in others:
        assert nodes(*other) is None


def test_only_what_became_known_is_written(layer: Any, tmp_path: Path) -> None:
    mesh, options = MESH, IntraOptions()
    records = LayerRecords(ResultFiles(tmp_path, 2**20), "1.0")
    record = records.of(layer, mesh, options)
    assert records.of(layer, mesh, options) is record
    records.save()
    assert not list(tmp_path.iterdir())
    record.is_possible = False
    records.save()
    (path,) = tmp_path.iterdir()
    path.unlink()
    records.save()
    assert not list(tmp_path.iterdir())


def test_without_files_equal_layers_have_one_record(layer: Any) -> None:
    records = LayerRecords()
    mesh, options = MESH, IntraOptions()
    assert records.of(layer, mesh, options) is records.of(copy(layer), mesh, options)
    assert records.of(layer, mesh, options) is not records.of(layer, mesh, IntraOptions(seed=1))
    assert LayerRecords().of(layer, mesh, options) is not records.of(layer, mesh, options)
    records.save()


def test_records_are_joined() -> None:
    whole, part = full_record(), full_record().only(KEY)
    assert list(part.prices) == [KEY]
    found = LayerRecord()
    found.add(part)
    assert found.size() == part.size()
    found.add(whole)
    assert written_record(found) == written_record(whole)
