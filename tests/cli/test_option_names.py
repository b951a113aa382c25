"""Messages that name options of a command."""

from __future__ import annotations

import pytest

from meshwise.cli.option_names import with_options


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("more (num_microbatches='auto') or", "more (--microbatches auto) or"),
        ('num_microbatches="auto", or a number', "--microbatches auto, or a number"),
        ("divisible by num_microbatches=3; divisors", "divisible by --microbatches 3; divisors"),
        ("Pass num_microbatches.", "Pass --microbatches."),
        ("a device (memory_bytes=4096) there", "a device (--memory 4096) there"),
        ("or raise memory_bytes", "or raise --memory"),
        ("say host_memory_bytes of the device", "say host_memory_bytes of the device"),
        ("with offload=True", "with --offload"),
    ],
)
def test_arguments_become_options(text: str, wanted: str) -> None:
    assert with_options(text) == wanted
