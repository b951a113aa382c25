"""What a message calls an argument of the library, as the option of a command."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from meshwise.plan.plan import Plan

# The commands that have such options. A plan file is explained as if `plan` had made it.
Command = Literal["train", "plan"]


@dataclass(frozen=True, slots=True)
class OptionName:
    """How an argument is written in a message, and its option.

    Attributes:
        argument: What stands in the message.
        option: What stands in its place.
        commands: The commands that have the option.
    """

    argument: re.Pattern[str]
    option: str
    commands: tuple[Command, ...] = ("train", "plan")


# Values stay: `num_microbatches='auto'` and `memory_bytes=4096`. The first that fits is taken.
OPTION_NAMES = (
    OptionName(re.compile(r"\bnum_microbatches=(['\"]?)([\w,]+)\1"), r"--microbatches \2"),
    OptionName(re.compile(r"\bnum_microbatches\b"), "--microbatches"),
    OptionName(
        re.compile(r"\bmemory_bytes=(\d+) is (\w+ \w+); \1 GiB are \1 \* 2\*\*30"),
        r"--memory \1 is \2; \1 GiB are --memory \1GiB",
    ),
    OptionName(re.compile(r"\bmemory_bytes=(\d+)"), r"--memory \1"),
    OptionName(re.compile(r"\bmemory_bytes\b"), "--memory"),
    OptionName(re.compile(r"\boffload=True\b"), "--offload"),
    OptionName(re.compile(r"\boffload=False\b"), "--no-offload"),
    OptionName(
        re.compile(r"\bnumber of stages \(mw\.Auto\(stages=\.\.\.\)\)"),
        "number of layers (--layers) or stages (--stages)",
        ("plan",),
    ),
    OptionName(re.compile(r"(?:\bmethod=)?\bmw\.Auto\(stages=\.\.\.\)"), "--stages"),
    OptionName(re.compile(r"\bnum_stages=(\d+)"), r"--stages \1"),
    OptionName(re.compile(r"\buse_all_devices=False\b"), "--any-devices", ("plan",)),
    OptionName(
        re.compile(r"\bmicrobatch_statistics=(['\"])(\w+)\1"),
        r"--microbatch-statistics \2",
        ("plan",),
    ),
    OptionName(
        re.compile(r"\bmethod=mw\.IntraOp\(\(([\d, ]+)\)\)"), "--method intra --mesh {}", ("train",)
    ),
    OptionName(re.compile(r"\bmethod=mw\.IntraOp\(\)"), "--method intra", ("train",)),
    OptionName(re.compile(r"\bmethod=mw\.IntraOp\(\)"), "--stages 1", ("plan",)),
    OptionName(re.compile(r"(?<![\w.])explain\(\)"), "the plan's text"),
    # A command takes dim 0 of each leaf as the batch.
    OptionName(
        re.compile(
            r"same number of rows, or say with batch_dims which dim is the batch, None for what is "
            "not batch data"
        ),
        "same number of rows in dim 0, and put what is not batch data into the state",
    ),
    # The command cuts each step at its loss, into one stage, too.
    OptionName(
        re.compile(r"\buse one stage\b"),
        "plan it in Python with method=mw.IntraOp(), which does not cut it",
        ("plan",),
    ),
)


def with_options(text: str, command: Command) -> str:
    """Return a message that names options of the command line in place of arguments.

    Args:
        text: The message, as a user of the library reads it.
        command: The command; what it has no option for stays as it is.
    """
    for name in OPTION_NAMES:
        if command in name.commands:
            text = name.argument.sub(lambda found, name=name: _option(name, found), text)
    return text


def _option(name: OptionName, found: re.Match[str]) -> str:
    """Return the option with its value; the sizes of a mesh as `2x4`."""
    if "{}" in name.option:
        return name.option.format("x".join(re.findall(r"\d+", found[1])))
    return found.expand(name.option)


def shown(plan: Plan, command: Command) -> Plan:
    """Return a plan as a command shows it: its warnings name options.

    Files that programs read keep the plan itself.

    Args:
        plan: The plan.
        command: The command.
    """
    return replace(plan, warnings=tuple(with_options(text, command) for text in plan.warnings))
