"""Types of command-line values: mesh shapes, sizes in bytes, numbers that may be `auto`."""

from __future__ import annotations

import re
from typing import Any

import click

from meshwise.cluster.spec import Cluster
from meshwise.errors import ClusterError

_BYTES = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


class MeshShape(click.ParamType[Any]):
    """`8`, `2x4` or `2x2x2`."""

    name = "shape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A tuple of axis sizes."""
        if isinstance(value, tuple):
            return value
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", value):
            self.fail(f"{value!r} is not a mesh shape; write it as 8, 2x4 or 2x2x2", param, ctx)
        return tuple(int(size) for size in value.split("x"))


class ByteSize(click.ParamType[Any]):
    """`512MiB`, `16GB` or a number of bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A number of bytes."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", value)
        if match is None or match[2].upper() not in _BYTES:
            self.fail(f"{value!r} is not a size; write it as 512MiB or 16GB", param, ctx)
        return int(float(match[1]) * _BYTES[match[2].upper()])


class IntOrAuto(click.ParamType[Any]):
    """A positive number or `auto`."""

    name = "number|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """An int, or the text `auto`."""
        if isinstance(value, int) or value == "auto":
            return value
        if not value.isdecimal() or int(value) == 0:
            self.fail(f"{value!r} is neither a positive number nor auto", param, ctx)
        return int(value)


class MethodName(click.ParamType[Any]):
    """How the plan is found: the name of a method."""

    name = "method"
    plain = ("auto", "intra", "data", "zero2", "zero3", "heuristic")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The name, checked."""
        if value in self.plain or re.fullmatch(r"megatron:[1-9]\d*x[1-9]\d*", value):
            return value
        names = ", ".join(self.plain)
        self.fail(f"{value!r} is not a method; there are {names} and megatron:DxT", param, ctx)


class ClusterName(click.ParamType[Any]):
    """A `.toml` file, a `.json` profile, or hosts by name as `8x p3.16xlarge`."""

    name = "cluster"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The cluster."""
        if isinstance(value, Cluster):
            return value
        try:
            return Cluster.named(value)
        except ClusterError as error:
            self.fail(str(error), param, ctx)
