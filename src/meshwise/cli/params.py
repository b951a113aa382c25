"""Types of command-line values: mesh shapes, sizes in bytes, numbers that may be `auto`.

`batch_option`, `dtype_option`, `config_option`, `offload_option`, `statistics_option` and
`trace_option` are options that several commands have.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import click

from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import ClusterError

_BYTES = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}

batch_option = click.option(
    "--batch",
    type=click.IntRange(1),
    help="Rows of the batch of a --model, 1024 by default; a --step has a batch of its own.",
)
dtype_option = click.option(
    "--dtype", default="float16", show_default=True, help="Data type of the products of --model."
)
config_option = click.option(
    "--config",
    "changes",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Changes a field of the configuration of --model, as seq_len=32768; may be repeated.",
)
offload_option = click.option(
    "--offload/--no-offload",
    default=None,
    help="Keep state that only the update reads, as moments of an optimizer, in the memory of "
    "hosts between its uses. Default: only where no plan fits without it, on one mesh also where "
    "it is faster.",
)
statistics_option = click.option(
    "--microbatch-statistics",
    "statistics",
    type=click.Choice(["exact", "local"]),
    default="exact",
    show_default=True,
    help="Statistics of batch norm: of the full batch, or of each micro-batch alone.",
)
trace_option = click.option(
    "--trace",
    "trace_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The simulated step, for Chrome or Perfetto.",
)


class MeshShape(click.ParamType[tuple[int, ...]]):
    """`8`, `2x4` or `2x2x2`."""

    name = "shape"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Return a tuple of axis sizes."""
        if isinstance(value, tuple):
            return cast(tuple[int, ...], value)
        text = str(value)
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text):
            self.fail(f"{value!r} is not a mesh shape; write it as 8, 2x4 or 2x2x2", param, ctx)
        return tuple(int(size) for size in text.split("x"))


class ByteSize(click.ParamType[int]):
    """`512MiB`, `16GB` or a number of bytes."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return a number of bytes."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", str(value))
        if match is None or match[2].upper() not in _BYTES:
            self.fail(f"{value!r} is not a size; write it as 512MiB or 16GB", param, ctx)
        return int(float(match[1]) * _BYTES[match[2].upper()])


class IntOrAuto(click.ParamType[int | str]):
    """A positive number or `auto`."""

    name = "number|auto"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """Return an int, or the text `auto`."""
        if isinstance(value, int) or value == "auto":
            return cast(int | str, value)
        text = str(value)
        if not text.isdecimal() or int(text) == 0:
            self.fail(f"{value!r} is neither a positive number nor auto", param, ctx)
        return int(text)


class MethodName(click.ParamType[str]):
    """How the plan is found: the name of a method."""

    name = "method"
    plain = ("auto", "intra", "data", "zero2", "zero3", "heuristic")

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the name, checked."""
        text = str(value)
        if text in self.plain or re.fullmatch(r"megatron:[1-9]\d*x[1-9]\d*", text):
            return text
        names = ", ".join(self.plain)
        self.fail(f"{value!r} is not a method; there are {names} and megatron:DxT", param, ctx)


class ClusterName(click.ParamType[ClusterSpec]):
    """A `.toml` file, a `.json` profile, or a line as `8x p3.16xlarge` or `8 cpu`."""

    name = "cluster"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> ClusterSpec:
        """Return the cluster."""
        if isinstance(value, ClusterSpec):
            return value
        try:
            return ClusterSpec.named(str(value))
        except ClusterError as error:
            self.fail(str(error), param, ctx)
