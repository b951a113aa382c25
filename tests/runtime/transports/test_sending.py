"""Strategies between hosts on the devices of one process: exact values, and nobody waits."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshwise.errors import ClusterError
from meshwise.graph.layout import split_layouts
from meshwise.resharding.cross_mesh.sending import Sending
from meshwise.resharding.cross_mesh.strategies import BROADCAST, STRATEGIES
from meshwise.runtime.transports.tile_copier import TileCopier
from meshwise.spmd.program import partition_spec

pytestmark = pytest.mark.usefixtures("quick_compile")

NAMES = ("x", "y")
RATE = 1e6


@pytest.fixture(scope="module")
def copier():
    """Two devices are a host."""
    return TileCopier(host_of=lambda device: device.id // 2)


def mesh(sizes, first=0):
    devices = jax.devices()[first : first + int(np.prod(sizes))]
    return Mesh(np.array(devices).reshape(sizes), NAMES)


def assert_lies(found, whole):
    for shard in found.addressable_shards:
        assert np.array_equal(np.asarray(shard.data), whole[shard.index])


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("after", "first"), [((2, 2), 4), ((3, 2), 2), ((1, 6), 1)])
def test_pairs_of_specs(copier, host_path, strategy, after, first):
    shape = (12, 6)
    whole = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    sending = Sending(strategy=strategy, bytes_per_s=RATE, chunk_s=1e-6)
    before = mesh((2, 2)), [P(), P("x"), P("y", "x"), P(None, ("y", "x"))]
    specs = [partition_spec(layout, NAMES) for layout in split_layouts(shape, after)][::2]
    for one, other in itertools.product(before[1], specs):
        try:
            value = jax.device_put(whole, NamedSharding(before[0], one))
        except ValueError:
            continue
        host_path.clear()
        sharding = NamedSharding(mesh(after, first), other)
        found = copier.put(value, sharding, sending=sending)
        assert host_path == []
        assert found.sharding == sharding
        assert_lies(found, whole)


def test_strategies_are_told_apart(copier):
    whole = np.arange(64, dtype=np.float32)
    value = jax.device_put(whole, NamedSharding(mesh((1, 2)), P()))
    sharding = NamedSharding(mesh((3, 2), 2), P())
    found = {
        strategy: copier.copies(value, sharding, Sending(strategy=strategy, bytes_per_s=RATE))
        for strategy in STRATEGIES
    }
    sent = {strategy: copies.crossing_bytes // whole.nbytes for strategy, copies in found.items()}
    assert sent == {
        "send/recv": 6,
        "local all-gather": 3,
        "global all-gather": 1,
        "broadcast": 1,
    }
    assert copier.copies(value, sharding) not in found.values()


def long_running(x):
    """As `x`, but much later."""
    return jax.lax.fori_loop(0, 10, lambda _, y: jnp.tanh(y @ x) * 1e-3, x) * 0 + x


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_not_there_yet_is_sent_without_waiting(copier, strategy):
    whole = np.arange(1024 * 1024, dtype=np.float32).reshape(1024, 1024)
    after = NamedSharding(mesh((2, 2), 4), P(None, "x"))
    # Two hosts send to two hosts: there are signals.
    given = jax.device_put(whole, NamedSharding(mesh((2, 2)), P("x")))
    sending = Sending(strategy=strategy, bytes_per_s=RATE, chunk_s=1e-2)
    copier.put(given, after, sending=sending).block_until_ready()
    later = jax.jit(long_running).lower(given).compile()(given)
    found = copier.put(later, after, sending=sending)
    assert not found.is_ready()
    assert_lies(found, whole)


def test_scalars_and_keys(copier):
    source = NamedSharding(mesh((1, 2)), P())
    sharding = NamedSharding(mesh((3, 2), 2), P())
    for strategy in STRATEGIES:
        sending = Sending(strategy=strategy, bytes_per_s=RATE)
        number = jax.device_put(np.float32(3), source)
        assert_lies(copier.put(number, sharding, sending=sending), np.float32(3)[...])
        key = jax.device_put(jax.random.key(3), source)
        found = copier.put(key, sharding, sending=sending)
        assert np.array_equal(jax.random.key_data(found), jax.random.key_data(key))


def test_signals_are_waited_for(copier):
    """What waits for a signal is computed from it, even if it is all of a tile."""
    program = copier.cutter((((0, 4),),), 1)
    text = str(program.lower(jnp.zeros(4), jnp.zeros(1)).as_text())
    assert "optimization_barrier" in text
    tile = jnp.arange(4.0)
    (found,) = program(tile, jnp.zeros(1))
    assert found is not tile
    assert np.array_equal(found, tile)


def test_a_rate_that_makes_no_sense_is_refused(copier):
    value = jax.device_put(np.ones(4), NamedSharding(mesh((1, 2)), P()))
    sharding = NamedSharding(mesh((1, 2), 2), P())
    with pytest.raises(ClusterError, match="a network card has a bandwidth of 0 bytes/s"):
        copier.put(value, sharding, sending=Sending(bytes_per_s=0, strategy=BROADCAST))
