"""Records of layers as JSON; numbers come back to the last bit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from meshwise.inter.layer_cost.footprint import Footprint
from meshwise.inter.layer_cost.layer_record import (
    Choice,
    LayerBounds,
    LayerRecord,
    Place,
    PlanFacts,
    PriceKey,
    PriceRecord,
    Raised,
    Solved,
)
from meshwise.kernels.arrays import Floats

Json: TypeAlias = Any
Value = TypeVar("Value")


def written_record(record: LayerRecord) -> bytes:
    """Return the bytes of a record, which `read_record` reads."""
    choices = _Choices()
    data = {
        "is_possible": record.is_possible,
        "nodes": record.nodes,
        "bounds": None if record.bounds is None else _bounds(record.bounds),
        "plans": [
            [choices.number(choice), facts.loop_s, facts.once_s, *_memory(facts.memory)]
            for choice, facts in record.plans.items()
        ],
        "prices": [[*key, _price(price, choices)] for key, price in record.prices.items()],
        "choices": choices.all,
    }
    return json.dumps(data, separators=(",", ":")).encode()


def read_record(data: bytes) -> LayerRecord:
    """Return the record that bytes hold; an empty one if they hold none."""
    try:
        found = json.loads(data)
        choices = [tuple(map(int, choice)) for choice in found["choices"]]
        return LayerRecord(
            is_possible=_or_none(bool, found["is_possible"]),
            nodes=_or_none(_place, found["nodes"]),
            bounds=_or_none(_read_bounds, found["bounds"]),
            plans={
                choices[n]: PlanFacts(float(loop_s), float(once_s), _read_memory(held))
                for n, loop_s, once_s, *held in found["plans"]
            },
            prices={
                PriceKey(
                    float(rate), float(flying), float(share), exact=bool(exact), seed=int(seed)
                ): _read_price(price, choices)
                for rate, flying, share, exact, seed, price in found["prices"]
            },
        )
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError):
        return LayerRecord()


class _Choices:
    """Each choice once: choices are long, and a record names the same one in many places."""

    def __init__(self) -> None:
        self.all: list[Choice] = []
        self._numbers: dict[Choice, int] = {}

    def number(self, choice: Choice | None) -> int:
        """Return the number of a choice; -1 for none."""
        if choice is None:
            return -1
        if choice not in self._numbers:
            self._numbers[choice] = len(self.all)
            self.all.append(choice)
        return self._numbers[choice]


def _or_none(read: Callable[[Json], Value], value: Json) -> Value | None:
    return None if value is None else read(value)


def _place(value: Json) -> Place:
    first, second = map(int, value)
    return first, second


def _matrix(values: Floats) -> Json:
    return values.tolist()


def _read_matrix(value: Json, dims: int) -> Floats:
    found = np.array(value, np.float64)
    if found.ndim != dims:
        raise ValueError(f"{found.ndim} dims in place of {dims}")
    return found


def _bounds(bounds: LayerBounds) -> Json:
    arrays = (bounds.loop_s, bounds.arriving_s, bounds.returning_s)
    return [*map(_matrix, arrays), bounds.resident_bytes]


def _read_bounds(value: Json) -> LayerBounds:
    loop_s, arriving_s, returning_s, resident_bytes = value
    return LayerBounds(
        loop_s=_read_matrix(loop_s, 2),
        arriving_s=_read_matrix(arriving_s, 1),
        returning_s=_read_matrix(returning_s, 1),
        resident_bytes=float(resident_bytes),
    )


def _memory(memory: Footprint) -> Sequence[int]:
    return (
        memory.resident_bytes,
        memory.microbatch_bytes,
        memory.temporary_bytes,
        memory.weight_bytes,
        memory.gradient_bytes,
    )


def _read_memory(value: Json) -> Footprint:
    resident, microbatch, temporary, weights, gradients = map(int, value)
    return Footprint(
        resident_bytes=resident,
        microbatch_bytes=microbatch,
        temporary_bytes=temporary,
        weight_bytes=weights,
        gradient_bytes=gradients,
    )


def _price(price: PriceRecord, choices: _Choices) -> Json:
    raised, solved = price.raised.items(), price.solved.items()
    return {
        "bound_s": None if price.bound_s is None else _matrix(price.bound_s),
        "raised": [
            [*place, seen.bound_s, choices.number(seen.choice), seen.cost_s]
            for place, seen in raised
        ],
        "relaxed_s": [[*place, bound_s] for place, bound_s in price.relaxed_s.items()],
        "solved": [
            [*place, choices.number(seen.choice), seen.cost_s, seen.proved_s]
            for place, seen in solved
        ],
    }


def _read_price(value: Mapping[str, Json], choices: Sequence[Choice]) -> PriceRecord:
    def choice(n: int) -> Choice | None:
        return None if n < 0 else choices[n]

    return PriceRecord(
        bound_s=_or_none(lambda v: _read_matrix(v, 2), value["bound_s"]),
        raised={
            _place((a, b)): Raised(float(bound_s), choice(n), float(cost_s))
            for a, b, bound_s, n, cost_s in value["raised"]
        },
        relaxed_s={_place((a, b)): float(bound_s) for a, b, bound_s in value["relaxed_s"]},
        solved={
            _place((a, b)): Solved(choice(n), float(cost_s), float(proved_s))
            for a, b, n, cost_s, proved_s in value["solved"]
        },
    )
