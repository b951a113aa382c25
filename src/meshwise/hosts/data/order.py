"""The order of the examples: a function of seed and place alone, whatever the number of hosts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meshwise.errors import DataError

# The number of an example in an epoch, the last number, a seed -> the number in its place.
Shuffle = Callable[[int, int, int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The order in which examples are read, epoch after epoch.

    Attributes:
        num_examples: How many the source has.
        seed: The seed of the first epoch; None: every epoch goes from the first to the last.
        shuffle: Shuffles an epoch.
    """

    num_examples: int
    seed: int | None
    shuffle: Shuffle

    def example(self, place: int) -> int:
        """Return the number of an example in the source.

        Args:
            place: Its place in the order, counted over all epochs.
        """
        epoch, at = divmod(place, self.num_examples)
        if self.seed is None:
            return at
        return self.shuffle(at, self.num_examples - 1, (self.seed + epoch) % 2**32)


def order_of(num_examples: int, seed: int | None) -> Order:
    """Return the order of `grain.MapDataset.source(source).shuffle(seed).repeat()`.

    Args:
        num_examples: How many examples the source has.
        seed: The seed; None leaves the examples as they are, and needs no Grain.

    Raises:
        DataError: there are no examples or too many, the seed is none, or Grain is not installed.
    """
    if num_examples < 1:
        raise DataError("the source has no examples; its len() is 0")
    if seed is None:
        return Order(num_examples=num_examples, seed=None, shuffle=lambda at, _last, _seed: at)
    if type(seed) is not int or not 0 <= seed < 2**32 or num_examples > 2**32:
        raise DataError(
            f"the seed must be a whole number from 0 to 2**32 - 1, and a source that is shuffled "
            f"has at most 2**32 examples; got seed={seed!r} and {num_examples} examples"
        )
    return Order(num_examples=num_examples, seed=seed, shuffle=_grain_shuffle())


def _grain_shuffle() -> Shuffle:
    try:
        from grain.experimental import index_shuffle
    except ImportError as error:
        raise DataError(
            "examples are shuffled by Grain, which is not installed; install meshwise[data], or "
            "pass shuffle=False and a source that is shuffled already"
        ) from error
    # Four rounds, as `MapDataset.shuffle` has them.
    return lambda at, last, seed: index_shuffle(at, max_index=last, seed=seed, rounds=4)
