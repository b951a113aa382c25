"""The TOML text of a cluster, as `ClusterSpec.from_file` reads it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from meshwise.cluster.description.host_table import host_table
from meshwise.cluster.host import HostGroup, HostSpec

_WIDTH = 100
# Parts of a host with sections of their own.
_TABLES = ("device", "peak")


def cluster_toml(name: str, groups: Sequence[HostGroup], comments: Sequence[str] = ()) -> str:
    """Return the description of a cluster.

    Args:
        name: The name of the cluster.
        groups: Its hosts.
        comments: Lines that stand before it.
    """
    lines = [f"# {line}" for text in comments for line in textwrap.wrap(text, _WIDTH - 2)]
    lines.append(f"name = {_text(name)}")
    for group in groups:
        lines += ["", "[[hosts]]", f"count = {group.count}", "", *_lines("hosts.host", group.host)]
    return "\n".join(lines) + "\n"


def _lines(name: str, host: HostSpec) -> Iterator[str]:
    """Yield the lines of a host; tables in it follow its values."""
    todo: list[tuple[str, Mapping[str, object]]] = [(name, host_table(host))]
    for at, table in todo:
        yield f"[{at}]"
        for key, value in table.items():
            if key in _TABLES:
                todo.append((f"{at}.{key}", cast("Mapping[str, object]", value)))
            else:
                yield f"{key} = {_value(value)}"
        yield ""


def _value(value: object) -> str:
    match value:
        case Mapping():
            items = cast("Mapping[str, object]", value).items()
            return f"{{ {', '.join(f'{name} = {_value(part)}' for name, part in items)} }}"
        case list() | tuple():
            return f"[{', '.join(map(_value, cast('Sequence[object]', value)))}]"
        case bool():
            return str(value).lower()
        case str():
            return _text(value)
        case _:
            return repr(value)


def _text(value: str) -> str:
    """Return a string of TOML, which has no surrogates and escapes one character more."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
