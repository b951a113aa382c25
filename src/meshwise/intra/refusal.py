"""What a plan that does not fit is refused with: what is largest there, and what helps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwise.errors import InfeasibleError
from meshwise.intra.memory import Peak
from meshwise.units import bytes_text

# Consumers that an error names.
_NAMED = 5


class TooLargeError(InfeasibleError):
    """No plan fits into memory.

    Attributes:
        limit: Bytes that one device may hold.
        smallest: The peak of the smallest plan that was found; that much memory is enough.
        is_proved: Whether it is certain that no plan fits.
    """

    limit: int
    smallest: Peak
    is_proved: bool


class TooFewDevicesError(InfeasibleError):
    """All devices together cannot hold what a step is given: no plan and no micro-batches help."""


def refuse_arguments(sizes: Mapping[str, int], num_devices: int, limit: int) -> None:
    """Refuse arguments that all devices together cannot hold, before anything is planned.

    Args:
        sizes: Bytes of each argument, by name.
        num_devices: Over how many devices they may be split.
        limit: Bytes that one device may hold.

    Raises:
        TooFewDevicesError: they need more.
    """
    total = sum(sizes.values())
    if total <= num_devices * limit:
        return
    ordered = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:_NAMED]
    largest = "; ".join(f"{bytes_text(size)} in {name or 'an input'}" for name, size in ordered)
    raise TooFewDevicesError(
        f"the arguments of the step are {bytes_text(total)} ({total} bytes); {num_devices} "
        f"device{'s' if num_devices > 1 else ''} of {bytes_text(limit)} ({limit} bytes) hold "
        f"{bytes_text(num_devices * limit)}, however they are split. Largest: {largest}. At least "
        f"{-(-total // max(limit, 1))} such devices or {-(-total // num_devices)} bytes per device "
        "are needed for the arguments alone"
    )


def no_choice() -> InfeasibleError:
    """The error where restrictions leave no plan, whatever the memory."""
    return InfeasibleError(
        "no plan satisfies the pins and restrictions: loosen a pin, or allow more collectives"
    )


def too_large(limit: int, smallest: Peak, *, is_proved: bool) -> TooLargeError:
    """The error that names what is largest and what helps.

    Args:
        limit: Bytes that one device may hold.
        smallest: Of the smallest plan that was found.
        is_proved: Whether it is certain that no plan fits.
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
    text = (
        f"{why} into {bytes_text(limit)} ({limit} bytes) per device; the smallest plan found peaks "
        f"at {bytes_text(smallest.num_bytes)} ({smallest.num_bytes} bytes). Largest there: "
        f"{largest}. Use more devices, more micro-batches, rematerialisation, a smaller batch, or "
        "raise memory_bytes"
    )
    error = TooLargeError(text)
    error.limit, error.smallest, error.is_proved = limit, smallest, is_proved
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
    return too_large(smallest.limit, smallest.smallest, is_proved=is_proved)
