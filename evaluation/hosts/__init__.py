"""Hosts with links of a set rate on one Linux machine, for what would need several machines.

`testbed.Testbed` makes a network namespace for each host, `obstacle.obstacle` says why none can be
made here, `stream.plain_stream` measures the rate of a TCP stream between two hosts, and
`leftovers.clean_leftovers` removes what testbeds left whose process was killed.
"""
