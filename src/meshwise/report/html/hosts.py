"""The processes of a job: how long others wait for each, and what it holds."""

from __future__ import annotations

from collections.abc import Sequence

from meshwise.report.host_stats import HostStats, host_columns, slowest_text
from meshwise.report.html.markup import escaped, html_table


def hosts_section(hosts: Sequence[HostStats]) -> str:
    """Return the section of the page; nothing where a process is alone.

    Args:
        hosts: The processes.
    """
    if len(hosts) < 2:
        return ""
    names, rows = host_columns(hosts)
    cells = [[escaped(cell) for cell in row] for row in rows]
    sentence = slowest_text(hosts)
    return (
        f"<h2>Hosts</h2><p>{escaped(sentence[0].upper() + sentence[1:])}. A host is late when it "
        "comes to a step after the first one; works and waits are of the measured step.</p>"
        + html_table(names, cells, "rlrrrrrr")
    )
