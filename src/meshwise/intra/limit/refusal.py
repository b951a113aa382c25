"""What a plan that does not fit is refused with: what is largest there, and what helps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshwise.errors import InfeasibleError
from meshwise.memory.peak import Peak
from meshwise.units import bytes_text

# What computes values again, by the libraries whose modules it takes.
REMATERIALISE = (
    "jax.checkpoint, or for modules nnx.remat, eqx.filter_checkpoint or flax.linen.remat,"
)
# Consumers that an error names.
_NAMED = 5


class TooLargeError(InfeasibleError):
    """No plan fits into memory.

    Attributes:
        limit: Bytes that one device may hold.
        smallest: The peak of the smallest plan that was found; that much memory is enough.
        is_proved: Whether it is certain that no plan fits.
        counts: Which numbers of micro-batches were tried, as a sentence; None if that was not asked
            for.
    """

    limit: int
    smallest: Peak
    is_proved: bool
    counts: str | None


class NoSuchPlanError(InfeasibleError):
    """There is no plan, whatever the memory: what holds less need not be looked for."""


def no_choice() -> NoSuchPlanError:
    """The error where restrictions leave no plan."""
    return NoSuchPlanError(
        "no plan satisfies the pins and restrictions: loosen a pin, or allow more collectives"
    )


def not_found(limit_s: float) -> InfeasibleError:
    """The error where the search ends without a plan and without a proof that there is none.

    Args:
        limit_s: The limit of time, in seconds; infinite for none.
    """
    if math.isinf(limit_s):
        return InfeasibleError("no plan was found, but there may be one: loosen a pin")
    return InfeasibleError(
        f"no plan was found in {limit_s:g} seconds, but there may be one: give a larger "
        "time_limit_s, or loosen a pin"
    )


def too_large(
    limit: int, smallest: Peak, *, is_proved: bool, counts: str | None = None
) -> TooLargeError:
    """The error that names what is largest and what helps.

    Args:
        limit: Bytes that one device may hold.
        smallest: Of the smallest plan that was found.
        is_proved: Whether it is certain that no plan fits.
        counts: As `TooLargeError` has it.
    """
    why = "no plan fits" if is_proved else "no plan was found that fits"
    sums: dict[str, tuple[int, int]] = {}
    for b in smallest.buffers:
        what = (
            f"{b.role} {b.where or 'an input'}" if b.role == "input" else f"{b.role} from {b.where}"
        )
        count, num_bytes = sums.get(what, (0, 0))
        sums[what] = (count + 1, num_bytes + b.num_bytes)
    ordered = sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))
    largest = "; ".join(
        f"{bytes_text(num_bytes)} in {count} x {what}"
        if count > 1
        else f"{bytes_text(num_bytes)} in {what}"
        for what, (count, num_bytes) in ordered[:_NAMED]
    )
    fewer = "more micro-batches (num_microbatches='auto'), " if counts is None else ""
    text = (
        f"{why} into {bytes_text(limit)} ({limit} bytes) per device; the smallest plan found peaks "
        f"at {bytes_text(smallest.num_bytes)} ({smallest.num_bytes} bytes). Largest there: "
        f"{largest}. {counts or ''}Use more devices, {fewer}rematerialisation ({REMATERIALISE} "
        "around a block), a smaller batch, or raise memory_bytes"
    )
    error = TooLargeError(text)
    error.limit, error.smallest, error.is_proved = limit, smallest, is_proved
    error.counts = counts
    return error


def smallest_refusal(errors: Sequence[InfeasibleError]) -> InfeasibleError:
    """The error of several searches without a plan: about the smallest plan of all.

    Args:
        errors: At least one.
    """
    large = [e for e in errors if isinstance(e, TooLargeError)]
    if not large:
        return errors[-1]
    smallest = min(large, key=lambda e: e.smallest.num_bytes)
    is_proved = all(e.is_proved for e in large)
    return too_large(smallest.limit, smallest.smallest, is_proved=is_proved, counts=smallest.counts)


def refusal_of_counts(
    errors: Sequence[InfeasibleError], largest: int, *, all_tried: bool
) -> InfeasibleError:
    """The error of searches with rising numbers of micro-batches.

    Args:
        errors: At least one.
        largest: The largest number that was tried.
        all_tried: Whether there was no larger one to try.
    """
    error = smallest_refusal(errors)
    if not isinstance(error, TooLargeError):
        return error
    counts = f"Numbers of micro-batches up to {largest} were tried"
    counts += ". " if all_tried else ", and more would not make it much smaller. "
    proved = error.is_proved and all_tried
    return too_large(error.limit, error.smallest, is_proved=proved, counts=counts)
