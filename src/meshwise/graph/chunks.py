"""Chunks of keys and query blocks of attention, so that few scores are held and computed."""

from __future__ import annotations

# With more keys scores are made chunk by chunk.
MOST_KEYS = 1024
# A chunk of less than one part in so many of what is allowed costs more than it saves.
_SMALLEST_PART = 8
# With so many query blocks a device computes 17 of 32 scores under a causal mask; with more, it
# would run more and smaller operators to save the rest.
_MOST_BLOCKS = 16


def chunk_of(size: int, most: int) -> int:
    """Return the size of equal chunks of keys; all of them if no chunks are large enough.

    Args:
        size: Number of keys.
        most: The most keys in a chunk.
    """
    most = min(size, most)
    counts = range(-(-size // most), _SMALLEST_PART * size // most + 1)
    return next((size // count for count in counts if size % count == 0), size)


def num_query_blocks(size: int, most: int) -> int:
    """Return the number of query blocks under a causal mask: equal, and each of whole chunks.

    Args:
        size: Number of rows, and of keys.
        most: The most keys in a chunk.
    """
    num_chunks = size // chunk_of(size, most)
    return max(d for d in range(1, min(num_chunks, _MOST_BLOCKS) + 1) if num_chunks % d == 0)
