"""The slowest host is named, in text and on a page."""

from __future__ import annotations

from doubles.jit_step import HOSTS
from meshwise.report.host_stats import HostStats, hosts_text
from meshwise.report.html.hosts import hosts_section


def test_text_names_the_slowest_host() -> None:
    text = hosts_text(HOSTS)
    assert text.startswith("slowest host: process 1 on node1 (125 ms late, 250 ms at work)\n")
    assert max(map(len, text.splitlines())) <= 100
    assert text.splitlines()[4].split() == [
        *("0", "node0", "500", "ms", "0", "s", "250", "ms", "?", "1", "MiB", "?"),
    ]


def test_a_page_names_the_slowest_host_of_several() -> None:
    odd = HostStats(process=2, name="<node2>", late_s=1.0)
    page = hosts_section((*HOSTS, odd))
    assert "Slowest host: process 2 on &lt;node2&gt; (1 s late)" in page
    assert hosts_section((odd,)) == ""
    assert "slowest host: not known" in hosts_text([HostStats(process=0, name="node")] * 2)
