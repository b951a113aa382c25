"""Messages that name options of a command."""

from __future__ import annotations

import importlib
import re

import pytest
from click import Command as ClickCommand

from meshwise.cli.option_names import OPTION_NAMES, Command, with_options


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("more (num_microbatches='auto') or", "more (--microbatches auto) or"),
        ('num_microbatches="auto", or a number', "--microbatches auto, or a number"),
        ("divisible by num_microbatches=3; divisors", "divisible by --microbatches 3; divisors"),
        ("Pass num_microbatches.", "Pass --microbatches."),
        ("a device (memory_bytes=4096) there", "a device (--memory 4096) there"),
        (
            "memory_bytes=14 is 14 bytes; 14 GiB are 14 * 2**30",
            "--memory 14 is 14 bytes; 14 GiB are --memory 14GiB",
        ),
        ("or raise memory_bytes", "or raise --memory"),
        (
            "give all the same number of rows, or say with batch_dims which dim is the batch, None "
            "for what is not batch data",
            "give all the same number of rows in dim 0, and put what is not batch data into the "
            "state",
        ),
        ("say host_memory_bytes of the device", "say host_memory_bytes of the device"),
        ("with offload=True", "with --offload"),
        ("use mw.Auto(stages=...), or one stage", "use --stages, or one stage"),
        ("no pipeline with num_stages=3", "no pipeline with --stages 3"),
        (
            "the largest is x, explain() names more",
            "the largest is x, the plan's text names more",
        ),
    ],
)
@pytest.mark.parametrize("command", ["train", "plan"])
def test_arguments_become_options(command: Command, text: str, wanted: str) -> None:
    assert with_options(text, command) == wanted


@pytest.mark.parametrize(
    ("command", "text", "wanted"),
    [
        ("train", "ask for its shape, method=mw.IntraOp((2, 4))", "--method intra --mesh 2x4"),
        ("train", "ask for its shape, method=mw.IntraOp((8,))", "--method intra --mesh 8"),
        ("plan", "ask for its shape, method=mw.IntraOp((2, 4))", "method=mw.IntraOp((2, 4))"),
        ("plan", "accept microbatch_statistics='local'", "accept --microbatch-statistics local"),
        ("train", "accept microbatch_statistics='local'", "microbatch_statistics='local'"),
        ("plan", "of the batch; use one stage", "; plan it in Python with method=mw.IntraOp(), "),
        ("train", "of the batch; use one stage", "; use one stage"),
        ("plan", "may stay idle (use_all_devices=False)", "may stay idle (--any-devices)"),
        ("train", "number of stages (mw.Auto(stages=...)) may", "of stages (--stages) may"),
        (
            "plan",
            "number of stages (mw.Auto(stages=...)) may",
            "number of layers (--layers) or stages (--stages) may",
        ),
    ],
)
def test_a_command_names_only_options_that_it_has(command: Command, text: str, wanted: str) -> None:
    assert wanted in with_options(text, command)


@pytest.mark.parametrize("command", ["train", "plan"])
def test_the_options_are_those_of_the_command(command: Command) -> None:
    found: ClickCommand = getattr(importlib.import_module(f"meshwise.cli.{command}"), command)
    known = {o for param in found.params for o in (*param.opts, *param.secondary_opts)}
    named = {
        option
        for name in OPTION_NAMES
        if command in name.commands
        for option in re.findall(r"--[a-z-]+", name.option)
    }
    assert named <= known
