"""What `meshwise calibrate` measured, or what a compiler told it, as a JSON file.

The cost model reads `host`, a table with the keys of `[host]` in a TOML description (see `read`);
`measured` keeps what it was made from.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar, cast

from meshwise.cluster.description import fields
from meshwise.cluster.description.fields import Table, required, shown, table_of
from meshwise.cluster.description.files import read_json
from meshwise.cluster.description.host_table import DTYPES, host_of, host_table
from meshwise.cluster.host import HostSpec
from meshwise.errors import ClusterError

FORMAT = "meshwise-profile"
VERSION = 1
_KEYS = (
    "format", "version", "created", "command", "versions", "platform", "device_kind", "host",
    "measured",
)  # fmt: skip

Point = TypeVar("Point")


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulPoint:
    """A product of two square matrices on every device at once.

    Attributes:
        dtype: The dtype of its operands.
        size: Rows and columns of each.
        seconds: Median of one product.
    """

    dtype: str
    size: int
    seconds: float

    @property
    def flop(self) -> float:
        """The FLOP of one product."""
        return 2.0 * self.size**3


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPoint:
    """An element-wise operator on every device at once.

    Attributes:
        num_bytes: Bytes that one device reads and writes.
        seconds: Median of one pass.
    """

    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivePoint:
    """One collective, in all its groups at once.

    Attributes:
        kind: The kind, as in `cluster.collectives`.
        group_size: Devices of a group.
        num_bytes: B: the tensor as a group sees it whole.
        seconds: Median of one collective.
    """

    kind: str
    group_size: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One calibration.

    Attributes:
        created: The date and time.
        command: The command that was called.
        versions: Pairs (program, version).
        platform: The platform as JAX calls it, as `cpu`.
        device_kind: The kind of the devices as JAX calls it.
        host: The host that the cost model uses.
        matmul: All measured products.
        memory: All measured passes over memory.
        collectives: All measured collectives; none on one device.
    """

    created: str
    command: str
    versions: tuple[tuple[str, str], ...]
    platform: str
    device_kind: str
    host: HostSpec
    matmul: tuple[MatmulPoint, ...]
    memory: tuple[MemoryPoint, ...]
    collectives: tuple[CollectivePoint, ...]

    def to_json(self) -> str:
        """Return the profile as indented JSON that `read_profile` reads back equal."""
        data = {
            "format": FORMAT,
            "version": VERSION,
            "created": self.created,
            "command": self.command,
            "versions": dict(self.versions),
            "platform": self.platform,
            "device_kind": self.device_kind,
            "host": host_table(self.host),
            "measured": {
                "matmul": [asdict(point) for point in self.matmul],
                "memory": [asdict(point) for point in self.memory],
                "collectives": [asdict(point) for point in self.collectives],
            },
        }
        return json.dumps(data, indent=1, allow_nan=False) + "\n"


def read_profile(path: str | Path) -> Profile:
    """Return a profile from its file.

    Raises:
        ClusterError: the file cannot be read, is no profile or one of another version, or a field
            is missing, unknown or wrong.
    """
    path = Path(path)
    where = f"profile {path}"
    data = read_json(path)
    record = cast(Table, data if isinstance(data, dict) else {})
    if record.get("format") != FORMAT:
        raise ClusterError(
            f"{where} is not one: the field 'format' must be {FORMAT!r}; write one with "
            "`meshwise calibrate --out FILE`"
        )
    version = record.get("version")
    if version != VERSION or isinstance(version, bool):
        raise ClusterError(
            f"{where} is of version {shown(version)}, this program reads version {VERSION}; "
            "calibrate again"
        )
    table = table_of(cast(object, data), where, _KEYS)
    kinds = ("matmul", "memory", "collectives")
    measured = table_of(required(table, "measured", where), f"{where}: measured", kinds)
    versions = required(table, "versions", where)
    known = tuple(cast(Table, versions if isinstance(versions, dict) else {}))
    names = table_of(cast(object, versions), f"{where}: versions", known)
    return Profile(
        created=fields.text(table, "created", where),
        command=fields.text(table, "command", where),
        versions=tuple((name, fields.text(names, name, f"{where}: versions")) for name in names),
        platform=fields.text(table, "platform", where),
        device_kind=fields.text(table, "device_kind", where),
        host=host_of(required(table, "host", where), f"{where}: host"),
        matmul=_points(measured, "matmul", where, _matmul),
        memory=_points(measured, "memory", where, _memory),
        collectives=_points(measured, "collectives", where, _collective),
    )


def _points(
    table: Table, key: str, where: str, read: Callable[[object, str], Point]
) -> tuple[Point, ...]:
    at = f"{where}: measured.{key}"
    items = fields.list_of(required(table, key, f"{where}: measured"), at)
    return tuple(read(item, f"{at}[{i}]") for i, item in enumerate(items))


def _matmul(value: object, where: str) -> MatmulPoint:
    table = table_of(value, where, ("dtype", "size", "seconds"))
    dtype = fields.text(table, "dtype", where)
    if dtype not in DTYPES:
        raise ClusterError(f"{where}: no dtype {shown(dtype)}; known: {', '.join(DTYPES)}")
    return MatmulPoint(
        dtype=dtype,
        size=fields.count(table, "size", where),
        seconds=fields.number(table, "seconds", where),
    )


def _memory(value: object, where: str) -> MemoryPoint:
    table = table_of(value, where, ("num_bytes", "seconds"))
    return MemoryPoint(
        num_bytes=fields.count(table, "num_bytes", where),
        seconds=fields.number(table, "seconds", where),
    )


def _collective(value: object, where: str) -> CollectivePoint:
    table = table_of(value, where, ("kind", "group_size", "num_bytes", "seconds"))
    return CollectivePoint(
        kind=fields.text(table, "kind", where),
        group_size=fields.count(table, "group_size", where),
        num_bytes=fields.count(table, "num_bytes", where),
        seconds=fields.number(table, "seconds", where),
    )
