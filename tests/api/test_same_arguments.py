"""Batches of processes are compared by type and values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshwise.api.same_arguments import check_same_arguments
from meshwise.errors import DataError
from meshwise.runtime.host_rows import HostRows
from meshwise.runtime.job.job import Job


@dataclass
class Other:
    """A job whose other process says what it is told to say."""

    text: str = ""

    def exchange(self, topic: str, text: str) -> list[str]:
        return [text, self.text or text]


def told(value: Any) -> str:
    job = Recorder()
    check_same_arguments(cast(Job, job), "step", [("x", value)])
    return job.said


@dataclass
class Recorder:
    said: str = ""

    def exchange(self, topic: str, text: str) -> list[str]:
        self.said = text
        return [text]


VALUES = [
    np.arange(6.0).reshape(2, 3),
    np.arange(6.0).reshape(3, 2).T,
    jnp.ones(3, jnp.bfloat16),
    jax.random.split(jax.random.key(0), 2),
    np.zeros((0, 3)),
    np.float32(2),
    True,
]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_the_same_batch_passes_and_another_does_not(value: Any) -> None:
    check_same_arguments(cast(Job, Other(told(value))), "step", [("x", value)])
    other = np.full((2, 3), 7.0)
    with pytest.raises(DataError, match="different values of x to step: .* in process 0, .* in"):
        check_same_arguments(cast(Job, Other(told(other))), "step", [("x", value)])


def test_rows_of_a_loader_are_not_compared() -> None:
    rows = HostRows((4, 2), np.float32, dim=0, pieces=())
    assert json.loads(told(rows)) == {}
    check_same_arguments(cast(Job, Other(told(np.ones(3)))), "step", [("x", rows)])
