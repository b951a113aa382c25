"""Arrays between meshes: exact values on every device, each tile once, nobody waits."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from meshwise.graph.layout import split_layouts
from meshwise.runtime.transports.copies import Rows
from meshwise.runtime.transports.tile_copier import TileCopier
from meshwise.spmd.program import partition_spec

pytestmark = pytest.mark.usefixtures("quick_compile")

NAMES = ("x", "y")


@pytest.fixture(scope="module")
def copier():
    return TileCopier()


def mesh(sizes, first=0):
    devices = jax.devices()[first : first + int(np.prod(sizes))]
    return Mesh(np.array(devices).reshape(sizes), NAMES)


def specs(shape, sizes):
    """All specs without order of axes, and one in the other order."""
    found = [partition_spec(layout, NAMES) for layout in split_layouts(shape, sizes)]
    return [*found, P(("y", "x"))] if shape and shape[0] % int(np.prod(sizes)) == 0 else found


def assert_lies(found, whole, sharding):
    assert found.sharding == sharding
    assert found.dtype == whole.dtype
    for shard in found.addressable_shards:
        assert np.array_equal(np.asarray(shard.data), whole[shard.index])


MESHES = (
    ((2, 2), (2, 2), 4),
    ((2, 2), (1, 4), 4),
    ((1, 4), (2, 2), 4),
    ((2, 4), (2, 2), 0),
    ((2, 4), (2, 4), 0),
)
SLOW = pytest.mark.slow
PAIRS = [
    pytest.param(shape, *meshes, marks=() if shape == (12,) or n == at == 1 else SLOW)
    for at, shape in enumerate([(12,), (8, 4), (4, 6, 8)])
    for n, meshes in enumerate(MESHES)
]


@pytest.mark.parametrize(("shape", "source", "destination", "first"), PAIRS)
def test_all_pairs_of_specs(copier, host_path, shape, source, destination, first):
    whole = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    before, after = mesh(source), mesh(destination, first)
    for one, other in itertools.product(specs(shape, source), specs(shape, destination)):
        value = jax.device_put(whole, NamedSharding(before, one))
        sharding = NamedSharding(after, other)
        found = copier.put(value, sharding)
        assert host_path == []
        assert_lies(found, whole, sharding)
        host_path.clear()
        if first:
            # The least that can pass: each distinct tile once.
            assert copier.copies(value, sharding).crossing_bytes == whole.nbytes


def test_the_spy_sees_the_blocking_path(host_path):
    value = jax.device_put(np.ones((4, 4)), NamedSharding(mesh((2, 2)), P("x")))
    jax.device_put(value, NamedSharding(mesh((2, 2), 4), P(None, "x")))
    assert host_path == [(4, 4)]


def long_running(x):
    """As `x`, but much later."""
    return jax.lax.fori_loop(0, 10, lambda _, y: jnp.tanh(y @ x) * 1e-3, x) * 0 + x


@pytest.mark.parametrize("spec", [P(None, "x"), P()], ids=str)
def test_what_is_not_there_yet_is_sent_without_waiting(copier, spec):
    whole = np.arange(1024 * 1024, dtype=np.float32).reshape(1024, 1024)
    after = NamedSharding(mesh((2, 2), 4), spec)
    given = jax.device_put(whole, NamedSharding(mesh((2, 2)), P()))
    # The programs are compiled, so that nothing but the copy itself could take time.
    copier.put(given, after).block_until_ready()
    later = jax.jit(long_running).lower(given).compile()(given)
    found = copier.put(later, after)
    assert not found.is_ready()
    assert_lies(found, whole, after)


def test_devices_on_both_sides_keep_their_tiles(copier):
    whole = np.arange(64, dtype=np.float32).reshape(8, 8)
    value = jax.device_put(whole, NamedSharding(mesh((2, 4)), P("x")))
    sharding = NamedSharding(mesh((1, 4)), P())
    assert copier.copies(value, sharding).crossing_bytes == whole.nbytes / 2
    assert_lies(copier.put(value, sharding), whole, sharding)


@pytest.mark.parametrize("spec", [P(), P("x"), P("x", "y")], ids=str)
def test_own_memory_is_shared_with_nothing(copier, spec):
    whole = np.arange(64, dtype=np.float32).reshape(8, 8)
    value = jax.device_put(whole, NamedSharding(mesh((2, 4)), P("x")))
    sharding = NamedSharding(mesh((2, 2)), spec)
    found = copier.put(value, sharding, own_memory=True)
    there = {shard.data.unsafe_buffer_pointer() for shard in value.addressable_shards}
    mine = {shard.data.unsafe_buffer_pointer() for shard in found.addressable_shards}
    assert len(mine) == 4
    assert not mine & there
    jax.jit(lambda x: x * 2, donate_argnums=0)(found).block_until_ready()
    assert_lies(value, whole, value.sharding)


def test_keys_with_their_own_memory_may_be_overwritten(copier):
    key = jax.random.key(3)
    expected = np.array(jax.random.key_data(key))
    for sharding in (NamedSharding(mesh((2, 2)), P()), SingleDeviceSharding(jax.devices()[0])):
        found = copier.put(key, sharding, own_memory=True)
        jax.jit(lambda k: jax.random.fold_in(k, 1), donate_argnums=0)(found)
        assert np.array_equal(jax.random.key_data(key), expected)


@pytest.mark.parametrize("shape", [(), (0, 4), (4, 0)])
@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.bool_, np.complex64])
def test_odd_shapes_and_dtypes(copier, host_path, shape, dtype):
    whole = np.ones(shape, dtype)
    value = jax.device_put(whole, NamedSharding(mesh((2, 2)), P(*("x" for _ in shape[:1]))))
    sharding = NamedSharding(
        mesh((1, 4), 4), P(*[None for _ in shape[:1]], *("y" for _ in shape[1:]))
    )
    found = copier.put(value, sharding)
    assert host_path == []
    assert_lies(found, whole, sharding)


def test_arrays_of_numpy_keys_and_single_devices(copier, host_path):
    sharding = NamedSharding(mesh((2, 2), 4), P("x"))
    whole = np.arange(8, dtype=np.float32)
    assert_lies(copier.put(whole, sharding), whole, sharding)
    host_path.clear()
    # What nobody placed lies on the first device.
    found = copier.put(jnp.arange(8, dtype=np.float32), sharding)
    assert host_path == []
    assert_lies(found, whole, sharding)
    back = copier.put(found, SingleDeviceSharding(jax.devices()[7]))
    assert back.devices() == {jax.devices()[7]}
    assert np.array_equal(back, whole)
    key = copier.put(jax.random.key(3), NamedSharding(mesh((2, 2), 4), P()))
    assert np.array_equal(jax.random.key_data(key), jax.random.key_data(jax.random.key(3)))


def test_donated_sources_go_and_what_was_sent_stays(copier):
    whole = np.arange(64, dtype=np.float32).reshape(8, 8)
    value = jax.device_put(whole, NamedSharding(mesh((2, 2)), P("x", "y")))
    sharding = NamedSharding(mesh((2, 2), 4), P("y"))
    found = copier.put(value, sharding)
    value.delete()
    assert_lies(found, whole, sharding)


def test_a_kind_of_array_is_looked_into_once(copier):
    fresh = TileCopier()
    value = jax.device_put(np.arange(8, dtype=np.float32), NamedSharding(mesh((2, 2)), P("x")))
    sharding = NamedSharding(mesh((2, 2), 4), P(("x", "y")))
    first = fresh.copies(value, sharding)
    assert fresh.copies(value + 1, sharding) is first
    fresh.put(value, sharding)
    programs = dict(fresh._programs)
    fresh.put(value + 1, sharding)
    assert fresh._programs == programs
    assert all(program._cache_size() == 2 for program, _, _ in first.phases[0].cuts)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("own_memory", [False, True])
def test_rows_of_an_array_go_as_the_array_of_these_rows(copier, host_path, dim, own_memory):
    whole = np.arange(64, dtype=np.float32).reshape(8, 8)
    there = [NamedSharding(mesh((2, 2)), p) for p in (P(), P("x"), P(("x", "y")), P("y", "x"))]
    sources = [jnp.asarray(whole), *(jax.device_put(whole, sharding) for sharding in there)]
    for value, spec in itertools.product(sources, (P(), P("x"), P(None, "y"), P("y", "x"))):
        sharding = NamedSharding(mesh((2, 2), 2), spec)
        for start, stop in ((0, 8), (0, 4), (4, 8), (2, 6)):
            rows = Rows(dim, start, stop)
            found = copier.put(value, sharding, rows=rows, own_memory=own_memory)
            index = (slice(None),) * dim + (slice(start, stop),)
            assert_lies(found, whole[index], sharding)
            given = {shard.data.unsafe_buffer_pointer() for shard in value.addressable_shards}
            mine = {shard.data.unsafe_buffer_pointer() for shard in found.addressable_shards}
            assert not own_memory or given.isdisjoint(mine)
    assert host_path == []


def test_one_program_takes_the_rows_of_all_micro_batches():
    fresh = TileCopier()
    value = jnp.arange(64.0).reshape(16, 4)
    sharding = NamedSharding(mesh((1, 1), 3), P())
    tiles = [fresh.copies(value, sharding, Rows(0, n, n + 4)).source for n in range(0, 16, 4)]
    assert len({tile.program for (tile,) in tiles}) == 1


def test_rows_of_keys_and_of_numpy(copier):
    sharding = NamedSharding(mesh((2, 2), 4), P("x"))
    keys = jax.random.split(jax.random.key(0), 8)
    found = copier.put(keys, sharding, rows=Rows(0, 2, 6))
    np.testing.assert_array_equal(jax.random.key_data(found), jax.random.key_data(keys[2:6]))
    whole = np.arange(8)
    np.testing.assert_array_equal(copier.put(whole, sharding, rows=Rows(0, 2, 6)), whole[2:6])
