"""The ways in which each program is run on eight devices, and what a refusal looks like."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import meshwise as mw
from meshwise.cluster.cpu import cpu_cluster
from meshwise.cluster.host import Link
from meshwise.intra.limit.refusal import TooLargeError
from oracle.problem import Problem


def _patient_devices() -> Any:
    """Eight virtual devices whose links cost nothing: small programs are worth splitting too."""
    cluster = cpu_cluster(8)
    (group,) = cluster.groups
    link = Link(latency_s=1e-9, bytes_per_s=1e13)
    host = replace(group.host, link=link, nic=link)
    return replace(cluster, groups=(replace(group, host=host),))


CLUSTER = _patient_devices()


def _one_mesh(problem: Problem) -> Any:
    return _parallel(problem, method=mw.IntraOp((2, 4)))


def _micro_batches(problem: Problem) -> Any:
    return _parallel(problem, method=mw.IntraOp((4, 2)), num_microbatches=2)


def _stages(problem: Problem) -> Any:
    return _parallel(problem, method=mw.Auto(stages=2), num_microbatches=2)


def _less_memory(problem: Problem) -> Any:
    """Half of the memory, or what the refusal of that says to be enough."""

    def limited(memory_bytes: int) -> Any:
        return _parallel(problem, method=mw.IntraOp((2, 4)), memory_bytes=memory_bytes)

    args = (problem.state, *problem.calls[0])
    step = limited(_one_mesh(problem).plan(*args).peak_bytes // 2)
    try:
        step.plan(*args)
    except TooLargeError as error:
        return limited(error.smallest.num_bytes)
    return step


def _parallel(problem: Problem, **options: Any) -> Any:
    return mw.parallelize(problem.step, cluster=CLUSTER, **{**problem.options, **options})


# The step of a problem, parallelised; what is planned beforehand may raise.
WAYS: Mapping[str, Callable[[Problem], Any]] = MappingProxyType(
    {
        "one_mesh": _one_mesh,
        "micro_batches": _micro_batches,
        "stages": _stages,
        "less_memory": _less_memory,
    }
)


REFUSALS = Path(__file__).parent / "refusals"


def refusal(error: mw.errors.MeshwiseError) -> str:
    """Return what a user sees, without the numbers of lines."""
    text = re.sub(r"[.]py:[0-9]+(:[0-9]+)?", ".py:LINE", f"{type(error).__name__}: {error}")
    return "\n".join(textwrap.wrap(text, 100, break_on_hyphens=False)) + "\n"
