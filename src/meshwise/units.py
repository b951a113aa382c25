"""Units: SI inside, readable only when printed."""

from __future__ import annotations

MIB = 1024**2
GIB = 1024**3
GIGA = 10**9
TERA = 10**12
MICRO = 1e-6

BITS_PER_BYTE = 8
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
# From here on three digits would read 1e+03.
_LEAST_ROUNDED_UP = 999.5


def gbit_per_s(value: float) -> float:
    """Return the bytes a second of a network card.

    Args:
        value: Its rate as it is sold, in Gbit/s.
    """
    return value * GIGA / BITS_PER_BYTE


def plural(count: int, noun: str) -> str:
    """Return a noun in the form that a number asks for, such as `stage` or `micro-batches`.

    Args:
        count: The number.
        noun: The noun for one; its plural ends in -s, or in -es after -ch, -sh or -s.
    """
    return noun if count == 1 else f"{noun}{'es' if noun.endswith(('ch', 'sh', 's')) else 's'}"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as `1 stage` or `4 micro-batches`.

    Args:
        count: The number.
        noun: The noun for one, as for `plural`.
    """
    return f"{count} {plural(count, noun)}"


def range_text(first: int, last: int) -> str:
    """Return the numbers of a range, such as `0-3`, or `0` where there is only one.

    Args:
        first: The first number.
        last: The last one.
    """
    return f"{first}" if first == last else f"{first}-{last}"


def _scaled(value: float, base: int, names: tuple[str, ...]) -> str:
    size = float(value)
    for name in names[:-1]:
        if abs(size) < base and size == int(size):
            return f"{size:.0f} {name}"
        if abs(size) < _LEAST_ROUNDED_UP:
            return f"{size:.3g} {name}"
        size /= base
    return f"{size:.4g} {names[-1]}" if abs(size) >= 1000 else f"{size:.3g} {names[-1]}"


def bytes_unit(num_bytes: float) -> tuple[int, str]:
    """Return the unit in which a number of bytes is at least one: its bytes, and its name.

    Args:
        num_bytes: The number.
    """
    power = 0
    while power < len(_BYTE_UNITS) - 1 and num_bytes >= 1024 ** (power + 1):
        power += 1
    return 1024**power, _BYTE_UNITS[power]


def bytes_text(num_bytes: float) -> str:
    """Return a number of bytes as text, such as `12.6 MiB`.

    Args:
        num_bytes: The number, negative for a difference.
    """
    return _scaled(num_bytes, 1024, _BYTE_UNITS)


def flop_text(flop: float) -> str:
    """Return an amount of work as text, such as `3.2 TFLOP`.

    Args:
        flop: The amount in FLOP.
    """
    return _scaled(flop, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))


def seconds_text(seconds: float) -> str:
    """Return a duration as text, such as `1.23 ms`.

    Args:
        seconds: The duration, negative for a difference.
    """
    if seconds == 0:
        return "0 s"
    for factor, name in ((1e6, "us"), (1e3, "ms")):
        if abs(seconds) * factor < _LEAST_ROUNDED_UP:
            return f"{seconds * factor:.3g} {name}"
    return f"{seconds:.4g} s"
