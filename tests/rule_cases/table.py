"""All cases."""

from __future__ import annotations

from rule_cases import elementwise, indexing, others, random, shape

CASES = (*elementwise.CASES, *shape.CASES, *indexing.CASES, *random.CASES, *others.CASES)

# Primitives that cannot be checked under `vmap`.
ON_DEVICES = (*others.ON_DEVICES, *random.ON_DEVICES)
