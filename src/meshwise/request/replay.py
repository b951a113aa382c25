"""What is asked beside a plan that is replayed: nothing of it may contradict the plan."""

from __future__ import annotations

from meshwise.errors import InfeasibleError, PlanError
from meshwise.request.methods import Replay
from meshwise.request.plan_request import PlanRequest
from meshwise.units import bytes_text


def check_beside_replay(request: PlanRequest) -> None:
    """Refuse what a replayed plan cannot give; other methods are not looked at.

    Args:
        request: What a user asks of a plan.

    Raises:
        PlanError: another number of micro-batches than the plan's is asked for, or pins, which
            only a search looks at.
        InfeasibleError: the plan needs more memory than is allowed.
    """
    if not isinstance(request.method, Replay):
        return
    plan = request.method.plan
    # 1 is what is asked where nothing is said.
    if request.num_microbatches not in (1, "auto", plan.num_microbatches):
        raise PlanError(
            f"num_microbatches={request.num_microbatches} beside Replay of a plan for "
            f"{plan.num_microbatches}; leave it out, or plan again"
        )
    if request.pins:
        raise PlanError(
            f"pins beside Replay ({', '.join(request.pins)}): nothing is decided there, so that "
            "they could not be kept to; leave them out, or plan again"
        )
    if request.memory_bytes is not None and plan.peak_bytes > request.memory_bytes:
        raise InfeasibleError(
            f"the plan that Replay is given needs {bytes_text(plan.peak_bytes)} a device, "
            f"memory_bytes allows {bytes_text(request.memory_bytes)}; allow more, or plan again"
        )
