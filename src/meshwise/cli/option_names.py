"""What a message calls an argument of `mw.parallelize`, as the option of a command."""

from __future__ import annotations

import re

# `num_microbatches='auto'` and `memory_bytes=4096` keep their values.
_OPTIONS = (
    (re.compile(r"\bnum_microbatches=(['\"]?)([\w,]+)\1"), r"--microbatches \2"),
    (re.compile(r"\bnum_microbatches\b"), "--microbatches"),
    (re.compile(r"\bmemory_bytes=(\d+)"), r"--memory \1"),
    (re.compile(r"\bmemory_bytes\b"), "--memory"),
    (re.compile(r"\boffload=True\b"), "--offload"),
    (re.compile(r"\boffload=False\b"), "--no-offload"),
)


def with_options(text: str) -> str:
    """Return a message that names options of the command line in place of arguments.

    Args:
        text: The message, as a user of the library reads it.
    """
    for argument, option in _OPTIONS:
        text = argument.sub(option, text)
    return text
