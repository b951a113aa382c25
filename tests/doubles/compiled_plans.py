"""Verifications of pipelines without a compiler."""

from __future__ import annotations

from collections.abc import Callable

from meshwise.plan.plan import Plan
from meshwise.targets.verification import Verification, VerifiedStage, VerifiedTarget


def verification(plan: Plan, compiled_bytes: Callable[[int], int]) -> Verification:
    """What a compiler says that needs so many bytes for each stage, from those predicted."""
    target = VerifiedTarget(
        name="h100",
        compiler="a compiler 1.0",
        memory_bytes=2**40,
        reserves={},
        usable_bytes=2**40,
    )
    return Verification(
        targets=(target,),
        stages=tuple(
            VerifiedStage(
                stage=s,
                target=target.name,
                predicted_bytes=plan.mesh_peak_bytes[mesh],
                compiled_bytes=compiled_bytes(plan.mesh_peak_bytes[mesh]),
                limit_bytes=plan.stages[s].memory_bytes,
            )
            for s, mesh in enumerate(plan.mesh_of_stage)
        ),
        programs=(),
        collectives=(),
    )
