"""Which runs of layers a pipeline that is fast enough can have as a stage."""

from __future__ import annotations

import numpy as np

from meshwise.inter.stages.stage_problem import StageCosts
from meshwise.kernels.arrays import Bools


def worthwhile(
    costs: StageCosts, num_devices: int, num_microbatches: int, at_most_s: float
) -> Bools:
    """Runs of layers that a step of at most some time may have, (first, last, submesh).

    A run must fit, its micro-batches must be done in time, and so must all other layers on the
    other devices if these could share the work without loss.  What is left out is not wrong to
    plan, it is unlikely to be needed: layers one by one on their best submesh may take more than
    in a run.

    Args:
        costs: Of stages, or bounds of them.
        num_devices: Of the cluster.
        num_microbatches: B.
        at_most_s: Seconds of a step.
    """
    size = np.array([m.num_devices for m in costs.submeshes])
    memory = np.array([m.memory_bytes for m in costs.submeshes])[:, None]
    fits = costs.peak_bytes(1.0) <= memory
    loop_s = (num_microbatches * np.where(fits, costs.microbatch_s, np.inf)).min(axis=3)
    alone = num_microbatches * costs.microbatch_s.min(axis=3)
    work = np.array([(alone[k, k] * size).min() for k in range(costs.num_layers)])
    total = np.concatenate([[0.0], np.cumsum(np.where(np.isfinite(work), work, 0.0))])
    outside = total[:-1, None] + (total[-1] - total[None, 1:])
    spare = num_devices - size
    with np.errstate(divide="ignore", invalid="ignore"):
        others_s = np.where(outside[..., None] > 0, outside[..., None] / spare, 0.0)
    return (loop_s <= at_most_s) & (others_s <= at_most_s)
