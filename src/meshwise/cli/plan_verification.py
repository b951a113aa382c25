"""`meshwise plan --verify`: imported only then, since it needs compilers and the runtime."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from meshwise.api.verified_plan import plan_verified
from meshwise.api.verify import verify_planned
from meshwise.cli.verify import told_by
from meshwise.planner.planned_pipeline import PlannedPipeline
from meshwise.system.atomic_file import write_atomically
from meshwise.targets.verification import Verification


def planned_until_it_fits(
    plan: Callable[[float], PlannedPipeline],
    target: str | None,
    out: Path | None,
    report: Callable[[str], None],
) -> tuple[PlannedPipeline, Verification]:
    """Plan and compile until the compiler says that the plan fits.

    Args:
        plan: Plans for a share of the memory of every device.
        target: Name of the devices in place of those of the cluster.
        out: Where the plan is going to be written; one that fails to compile is kept beside it.
        report: Is told of progress.

    Returns:
        The plan, and what the compiler says of it.

    Raises:
        MeshwiseError: no plan fits, or it cannot be compiled.
    """
    return plan_verified(plan, lambda p: _verification(p, target, out, report), report)


def _verification(
    planned: PlannedPipeline, target: str | None, out: Path | None, report: Callable[[str], None]
) -> Verification:
    """Compile a plan; if that fails or is interrupted, the plan is kept beside `out`."""
    try:
        return verify_planned(planned, target, told_by(report))
    except BaseException:
        if out is not None:
            kept = out.with_name(f"{out.stem}.unverified.json")
            with suppress(OSError):
                write_atomically(kept, planned.plan.to_json())
                report(f"the plan that was not compiled is in {kept}")
        raise
