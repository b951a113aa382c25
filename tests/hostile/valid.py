"""Valid files, small ones, out of which hostile ones are made."""

from __future__ import annotations

import json
from typing import Any

from doubles.golden_plans import GOLDEN
from hostile.mutations import json_of, toml_of

_LINK = {"latency_s": 3e-6, "bytes_per_s": 1e11}
_NIC = {"latency_s": 3e-5, "bytes_per_s": 1.25e9}
HOST: dict[str, Any] = {
    "name": "workstation",
    "num_devices": 4,
    "link": _LINK,
    "nic": _NIC,
    "num_nics": 2,
    "source": "measured",
    "device": {
        "name": "card",
        "memory_bytes": 16_000_000_000,
        "memory_bytes_per_s": 7e11,
        "flop_per_s": {"float32": 8e12, "bfloat16": 6e13},
        "source": "measured 2026-11-20",
        "dense_times": {"float32": [[1e9, 1e-3], [2e9, 2e-3]]},
    },
    "peak": {
        "flop_per_s": {"float32": 9e12},
        "memory_bytes": 17_000_000_000,
        "memory_bytes_per_s": 8e11,
        "link_bytes_per_s": 2e11,
        "nic_bytes_per_s": 2e9,
    },
}
CLUSTERS: tuple[dict[str, Any], ...] = (
    {"name": "lab", "num_hosts": 2, "host": HOST},
    {"num_hosts": 2, "host": "p3.16xlarge"},
    {
        "name": "mixed",
        "hosts": [
            {"count": 4, "host": "p3.16xlarge"},
            {"count": 2, "host": "p3.16xlarge", "nic": _NIC, "num_nics": 1, "name": "slow"},
            {"count": 1, "host": HOST},
        ],
    },
)
CLUSTER_FILES = tuple(toml_of(cluster) for cluster in CLUSTERS)

PROFILE: dict[str, Any] = {
    "format": "meshwise-profile",
    "version": 1,
    "created": "2026-11-20 10:00",
    "command": "meshwise calibrate",
    "versions": {"jax": "0.10.2"},
    "platform": "cpu",
    "device_kind": "cpu",
    "host": HOST,
    "measured": {
        "matmul": [{"dtype": "float32", "size": 512, "seconds": 1e-3}],
        "memory": [{"num_bytes": 1_000_000, "seconds": 1e-3}],
        "collectives": [{"kind": "all-reduce", "group_size": 2, "num_bytes": 100, "seconds": 1e-3}],
    },
}
PROFILE_FILE = json_of(PROFILE)

INSTANCE: dict[str, Any] = {
    "problem": {
        "name": "small",
        "nodes": {
            "intervals": [[0, 2], [1, 3], [0, 5]],
            "costs": [[1, 2], [3, 4, 5], [7]],
            "usages": [[10, 0], [7, 5, 1], [1]],
        },
        "edges": {"nodes": [[0, 1], [1, 2]], "costs": [[0, 1, 2, 3, 4, 5], [1, 2, 3]]},
        "usage_limit": 12,
    }
}
INSTANCE_FILE = json_of(INSTANCE)

PLAN_FILES = tuple(
    (GOLDEN / "plans" / f"{name}.json").read_bytes()
    for name in (
        "product-by-data",
        "product-priced",
        "list-of-weights",
        "plan-version-3",
        "pipeline-version-3",
        "gpt-two-stages",
    )
)
PLANS: tuple[dict[str, Any], ...] = tuple(json.loads(text) for text in PLAN_FILES)
