"""Stacks of layers between steps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwise.runtime.pipeline.stacking import Stacking, home_of
from meshwise.runtime.transports.tile_copier import TileCopier

Runs = list[tuple[int, tuple[int, int], PartitionSpec]]
P = PartitionSpec

# For each stage the number of its layers, its devices (from, to), its layout; whether the stack is
# split over stages, and the parts of the stack on one device.
CASES: dict[str, tuple[int, Runs, int, tuple[int, ...]]] = {
    "even": (0, [(2, (0, 2), P("x")), (2, (2, 4), P("x"))], 4, (2, 4, 3)),
    "even along dim 1": (1, [(1, (0, 2), P("x")), (1, (4, 6), P("x", None))], 2, (4, 1, 3)),
    "one stage": (2, [(3, (0, 4), P(None, None))], 3, (8, 3, 3)),
    "not even": (0, [(2, (0, 2), P("x")), (1, (2, 4), P("x"))], 3, (3, 2, 3)),
    "other layouts": (1, [(1, (0, 2), P("x")), (1, (2, 4), P())], 2, (2, 2, 3)),
    "other meshes": (0, [(1, (0, 2), P("x")), (1, (2, 3), P("x"))], 2, (2, 8, 1)),
    "a stage in two parts": (
        0,
        [(1, (0, 2), P()), (1, (2, 4), P()), (1, (0, 2), P())],
        3,
        (3, 2, 3),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_stack_comes_back_as_it_was(name: str) -> None:
    dim, runs, count, part = CASES[name]
    members = []
    for length, (first, stop), spec in runs:
        mesh = Mesh(np.array(jax.devices()[first:stop]), ("x",))
        members += [NamedSharding(mesh, spec)] * length
    layers = [np.arange(24.0).reshape(8, 3) + 100 * k for k in range(count)]
    home = home_of(dim, (8, 3), members)
    stacking = Stacking(TileCopier())
    value = np.stack(layers, axis=dim)
    made = stacking.together(home, stacking.apart(home, value))
    assert made.sharding == home.sharding
    assert made.addressable_shards[0].data.shape == part
    np.testing.assert_array_equal(made, value)
    again = stacking.apart(home, made)
    assert all(isinstance(x, jax.Array) for x in again)
    for one, layer in zip(again, layers, strict=True):
        np.testing.assert_array_equal(one, layer)


def test_layers_stay_on_their_devices_where_stages_are_even() -> None:
    meshes = [Mesh(np.array(jax.devices()[n : n + 2]), ("x",)) for n in (0, 2)]
    members = [NamedSharding(mesh, P(None, "x")) for mesh in meshes]
    home = home_of(0, (3, 4), members)
    stacking = Stacking(TileCopier())
    given: Any = [jax.device_put(jnp.ones((3, 4)) * k, s) for k, s in enumerate(members)]
    found = stacking.apart(home, stacking.together(home, given))
    assert [x.sharding for x in found] == members


def test_another_number_of_layers_is_refused() -> None:
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:1]), ("x",)), P())
    home = home_of(0, (3,), [sharding] * 2)
    with pytest.raises(ValueError, match="not 2 layers but 3"):
        Stacking(TileCopier()).apart(home, np.ones((3, 3)))
