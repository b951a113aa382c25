"""What is written for a trainer is in the stored list of its options, with values that it takes."""

from __future__ import annotations

import argparse
import itertools
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwise.plan.stage import REMATS
from meshwise.trainers.point import TrainerPoint
from meshwise.trainers.registry import TRAINERS
from meshwise.trainers.sizes import Sizes
from meshwise.trainers.trainer import Trainer

LISTS = Path(__file__).parent / "options"
SIZES = (
    Sizes(
        num_devices=64,
        devices_per_host=8,
        batch_size=512,
        microbatch_counts=(8, 64),
        num_blocks=80,
        num_heads=8,
        sequence=(1, 8192),
    ),
    # Few long rows, experts.
    Sizes(
        num_devices=32,
        devices_per_host=8,
        batch_size=8,
        microbatch_counts=(1, 2, 4, 8),
        num_blocks=24,
        num_heads=16,
        layers_per_block=2,
        num_experts=8,
        sequence=(1, 32768),
        has_rings=True,
    ),
)


def stored(name: str) -> Iterator[tuple[str, str, list[str] | None]]:
    for line in (LISTS / f"{name}.txt").read_text().splitlines():
        if not line.startswith("#"):
            option, kind, *choices = line.split()
            yield option, kind, choices[0].split("|") if choices else None


def points(trainer: Trainer) -> Iterator[tuple[TrainerPoint, Sizes]]:
    for sizes in SIZES:
        for n, point in enumerate(trainer.points(sizes)):
            if n % 7 == 0 or point.sequence_parts > 1 or point.expert > 1:
                yield point, sizes


def each(name: str) -> list[tuple[dict[str, str], TrainerPoint, Sizes]]:
    """Options of many points, with every remat."""
    trainer = TRAINERS[name]
    found: list[tuple[dict[str, str], TrainerPoint, Sizes]] = []
    for (point, sizes), remat in zip(points(trainer), itertools.cycle(REMATS)):
        asked = TrainerPoint(**{f: getattr(point, f) for f in point.__slots__} | {"remat": remat})
        found.append((trainer.options(asked, sizes), asked, sizes))
    axes = ("pipeline", "data", "expert", "context", "ring", "tensor", "chunks")
    assert all(any(getattr(p, axis) > 1 for _, p, _ in found) for axis in axes)
    return found


def test_megatrons_options_parse() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for option, kind, choices in stored("megatron"):
        if kind == "0":
            parser.add_argument(option, action="store_true")
        else:
            nargs = "+" if kind == "+" else None
            parser.add_argument(option, nargs=nargs, choices=choices)
    for options, point, sizes in each("megatron"):
        text = TRAINERS["megatron"].text(options)
        parsed = parser.parse_args(shlex.split(text.replace("\\\n", " ")))
        assert int(parsed.tensor_model_parallel_size) == point.tensor
        assert parsed.sequence_parallel == (point.tensor > 1)
        # What validate_args asks for.
        model = point.tensor * point.pipeline * point.sequence_parts
        copies, rest = divmod(sizes.num_devices, model)
        assert rest == 0
        rows = int(parsed.micro_batch_size) * copies
        assert int(parsed.global_batch_size) == rows * point.num_microbatches
        if parsed.num_layers_per_virtual_pipeline_stage is not None:
            of_stage = sizes.num_blocks * sizes.layers_per_block // point.pipeline
            assert of_stage % int(parsed.num_layers_per_virtual_pipeline_stage) == 0
            assert point.pipeline > 1
            assert point.num_microbatches % point.pipeline == 0
        if parsed.recompute_granularity == "selective":
            assert parsed.recompute_method is None
            assert parsed.recompute_num_layers is None
        if parsed.expert_model_parallel_size is not None:
            assert copies % int(parsed.expert_model_parallel_size) == 0


def test_maxtexts_options_are_keys_of_its_configuration() -> None:
    known = {option: (kind, choices) for option, kind, choices in stored("maxtext")}
    reads = {"int": int, "float": float, "str": str, "bool": ("true", "false").index}
    for options, point, sizes in each("maxtext"):
        lines = TRAINERS["maxtext"].text(options).splitlines()
        read = dict(line.split(": ") for line in lines)
        assert read == options
        for name, value in read.items():
            kind, choices = known[name]
            reads[kind](value)
            assert choices is None or value in choices
        parallel = [int(v) for name, v in read.items() if name.startswith("ici_")]
        total = 1
        for size in parallel:
            total *= size
        assert total == sizes.num_devices
        steps = int(read["gradient_accumulation_steps"])
        rows = float(read["per_device_batch_size"]) * sizes.num_devices * steps
        assert rows == sizes.batch_size
        if point.pipeline > 1:
            layers = int(read["num_layers_per_pipeline_stage"]) * int(read["num_pipeline_repeats"])
            assert layers * point.pipeline == sizes.num_blocks * sizes.layers_per_block
            assert int(read["num_pipeline_microbatches"]) % point.pipeline == 0
        if read["shard_optimizer_over_data"] == "true":
            assert point.fsdp == 1


@pytest.mark.parametrize("name", TRAINERS)
def test_the_version_is_that_of_the_list(name: str) -> None:
    head = (LISTS / f"{name}.txt").read_text().partition(":")[0]
    version = head.removeprefix("# Options of ")
    title = TRAINERS[name].title
    assert version in title or version.replace("maxtext", "MaxText") == title
