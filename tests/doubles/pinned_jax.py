"""Whether JAX is the one of `constraints.txt`, whose numbers pages and golden texts show.

Another one differentiates and compiles a little differently, so that milliseconds and bytes differ.
"""

import re
from pathlib import Path

import jax

_PINS = (Path(__file__).parents[2] / "constraints.txt").read_text(encoding="utf-8")
IS_PINNED_JAX = f"jax=={jax.__version__}" in re.findall(r"^jax==.*$", _PINS, re.M)
