"""A checkpoint that is not what was written is found out, and the one before is taken."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

import meshwise as mw
from meshwise.errors import CheckpointError
from meshwise.train.checkpoint import Checkpoints
from meshwise.train.checksums import CHECKSUMS
from meshwise.train.history import History
from meshwise.train.step import TrainState

IDENTITY: dict[str, object] = {"seed": 0}
Seen = list[tuple[int, Path, str]]


def state(step: int) -> TrainState:
    weights = np.random.default_rng(step).normal(size=(64, 8)).astype(np.float32)
    return TrainState(jnp.int32(step), {"w": jnp.asarray(weights)}, ({"w": jnp.ones(3)}, None))


def history(step: int) -> History:
    return History(losses=(float("nan"), *[0.1] * (step - 1)), heldout=((0, 2.5),))


@pytest.fixture(scope="module")
def two_saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    with Checkpoints(folder, IDENTITY) as checkpoints:
        for step in (4, 8):
            checkpoints.save(state(step), history(step))
    return folder


@pytest.fixture
def folder(two_saved: Path, tmp_path: Path) -> Path:
    """Checkpoints of the steps 4 and 8."""
    return Path(shutil.copytree(two_saved, tmp_path / "checkpoints"))


def restored(folder: Path, seen: Seen) -> int:
    """Restore, and save the step after; return the step that was restored."""
    with Checkpoints(folder, IDENTITY) as checkpoints:
        found, old = checkpoints.restore(state(0), lambda *told: seen.append(told))
        step = int(found.step)
        assert repr(old) == repr(history(step))
        for new, want in zip(jax.tree.leaves(found), jax.tree.leaves(state(step)), strict=True):
            assert np.asarray(new).tobytes() == np.asarray(want).tobytes()
        checkpoints.save(state(8), history(8))
        checkpoints.wait()
        assert checkpoints.newest_step == 8
    return step


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def empty(file: Path) -> None:
    file.write_bytes(b"")


# One file of each kind; the numbers of a process are in more than one.
KINDS = (
    "meta/metadata",
    "state/_METADATA",
    "state/_sharding",
    "state/manifest.ocdbt",
    "state/d/*",
    "state/ocdbt.process_0/manifest.ocdbt",
    "state/ocdbt.process_0/d/*",
    "state/checksums.json",
)


@pytest.mark.parametrize("harm", [truncate, flip, empty, Path.unlink])
@pytest.mark.parametrize("kind", KINDS)
def test_each_damage_of_each_file_is_found(
    folder: Path, kind: str, harm: Callable[[Path], object]
) -> None:
    files = sorted((folder / "8").glob(kind), key=lambda file: file.stat().st_size)
    harm(files[-1])
    seen: Seen = []
    assert restored(folder, seen) == 4
    ((step, place, text),) = seen
    assert (step, place) == (8, folder / "8.damaged")
    assert kind.partition("*")[0] in text
    assert (place / "meta").is_dir()


@pytest.mark.parametrize("harm", [truncate, flip, empty, Path.unlink])
@pytest.mark.parametrize("name", ["_CHECKPOINT_METADATA", "commit_success.txt"])
def test_what_orbax_notes_beside_the_items_costs_nothing(
    folder: Path, name: str, harm: Callable[[Path], object]
) -> None:
    file = folder / "8" / name
    if file.exists():  # Depends on the file system.
        harm(file)
    seen: Seen = []
    assert restored(folder, seen) == 8
    assert not seen


def other_pytree(folder: Path) -> None:
    other = state(8)._replace(params={"w": jnp.ones(3), "more": jnp.ones(3)})
    shutil.rmtree(folder / "8")
    with Checkpoints(folder, IDENTITY) as checkpoints:
        checkpoints.save(other, history(8))


def edited_history(folder: Path) -> None:
    file = folder / "8" / "meta" / "metadata"
    value = json.loads(file.read_text())
    value["history"]["losses"][2] = 0.25
    file.write_text(json.dumps(value))


def no_files(folder: Path) -> None:
    shutil.rmtree(folder / "8")
    (folder / "8").mkdir()


def no_item(folder: Path) -> None:
    shutil.rmtree(folder / "8" / "state")


def other_step(folder: Path) -> None:
    shutil.rmtree(folder / "8")
    shutil.copytree(folder / "4", folder / "8")


def paths_outside(folder: Path) -> None:
    (folder / "secret").write_text("x")
    file = folder / "8" / "state" / CHECKSUMS
    value = json.loads(file.read_text())
    value["files"]["../../secret"] = [1, 2363233923]
    file.write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (other_pytree, "ValueError"),
        (edited_history, "checksum differs"),
        (no_files, "No such file"),
        (no_item, "no file"),
        (other_step, "losses of 4 steps"),
        (paths_outside, "no file"),
    ],
)
def test_damage_of_the_whole_is_found(
    folder: Path, harm: Callable[[Path], None], told: str
) -> None:
    harm(folder)
    seen: Seen = []
    assert restored(folder, seen) == 4
    assert [step for step, _, _ in seen] == [8]
    assert told in seen[0][2]


HOSTILE: tuple[Any, ...] = (
    None, [], {}, {"losses": 1, "heldout": []}, {"losses": [], "heldout": {}},
    {"losses": ["1"] * 8, "heldout": []}, {"losses": [True] * 8, "heldout": []},
    {"losses": [10**400] * 8, "heldout": []}, {"losses": [1.0] * 8, "heldout": [[1]]},
    {"losses": [1.0] * 8, "heldout": [["1", 2]]}, {"losses": [1.0] * 8, "heldout": [[9, 2.0]]},
    {"losses": [1.0] * 8, "heldout": [[2, 2.0], [1, 2.0]]}, {"losses": [1.0] * 8},
)  # fmt: skip


def test_a_history_that_is_none_is_damage(folder: Path) -> None:
    file = folder / "8" / "meta" / "metadata"
    texts = [json.dumps({"identity": IDENTITY, "history": value}) for value in HOSTILE]
    texts += ["[" * 100_000, "\x00", '"x"', '{"identity": 3}', '{"history": {}}']
    for text in texts:
        file.write_text(text)
        with Checkpoints(folder, IDENTITY) as checkpoints:
            seen: Seen = []
            checkpoints.restore(state(0), lambda *told: seen.append(told))  # noqa: B023
        ((_, place, told),) = seen
        assert "meta/metadata" in told
        place.rename(folder / "8")


def test_where_none_is_whole_all_stay_and_the_error_names_them(folder: Path) -> None:
    flip(folder / "8" / "state" / "_METADATA")
    (folder / "4" / "state" / "manifest.ocdbt").unlink()
    with (
        Checkpoints(folder, IDENTITY) as checkpoints,
        pytest.raises(CheckpointError, match=r"(?s)step 8: .*step 4: .*another --out.*--fresh"),
    ):
        checkpoints.restore(state(0))
    assert sorted(path.name for path in folder.iterdir()) == ["4", "8"]


def test_damage_twice_keeps_both(folder: Path) -> None:
    for number in (1, 2):
        flip(folder / "8" / "state" / "_METADATA")
        seen: Seen = []
        assert restored(folder, seen) == 4
        assert len(list(folder.glob("8.damaged*"))) == number
    assert restored(folder, []) == 8


def test_a_whole_one_of_another_run_is_no_damage(folder: Path) -> None:
    with (
        Checkpoints(folder, {"seed": 1}) as checkpoints,
        pytest.raises(CheckpointError, match="seed: 0 there, 1 here"),
    ):
        checkpoints.restore(state(0))
    assert sorted(path.name for path in folder.iterdir()) == ["4", "8"]


@pytest.mark.parametrize("file", ["", "state/_METADATA"])
def test_one_without_checksums_is_restored_if_it_can_be(folder: Path, file: str) -> None:
    for step in ("4", "8"):
        (folder / step / "state" / CHECKSUMS).unlink()
        meta = folder / step / "meta" / "metadata"
        value = json.loads(meta.read_text())
        del value["checksum"]
        meta.write_text(json.dumps(value))
    if file:
        truncate(folder / "8" / file)
    seen: Seen = []
    assert restored(folder, seen) == (4 if file else 8)
    assert len(seen) == bool(file)


def test_leftovers_of_a_save_that_was_killed_are_removed(folder: Path) -> None:
    torn = folder / "12.orbax-checkpoint-tmp"
    shutil.copytree(folder / "8", torn)
    with Checkpoints(folder, IDENTITY) as checkpoints:
        assert not torn.exists()
        assert checkpoints.newest_step == 8
        checkpoints.save(state(12), history(12))
    assert (folder / "12").is_dir()


def test_as_many_stay_as_asked(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, IDENTITY, keep=3) as checkpoints:
        for step in range(1, 6):
            checkpoints.save(state(step), history(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["3", "4", "5"]


def test_users_of_orbax_get_the_same_protection(tmp_path: Path) -> None:
    tree = {"w": jnp.arange(512.0), "n": np.arange(3)}
    how = ocp.checkpoint_utils.construct_restore_args(tree)
    with ocp.CheckpointManager(tmp_path, item_handlers=mw.checkpoint_handler()) as manager:
        manager.save(1, args=ocp.args.PyTreeSave(tree))
        manager.wait_until_finished()
        manager.restore(1, args=ocp.args.PyTreeRestore(tree, how))
        files = (file for file in (tmp_path / "1").rglob("d/*") if file.is_file())
        flip(max(files, key=lambda file: file.stat().st_size))
        with pytest.raises(CheckpointError, match=r"is damaged: .* checksum differs"):
            manager.restore(1, args=ocp.args.PyTreeRestore(tree, how))


def test_a_folder_without_a_manager_is_restored(tmp_path: Path) -> None:
    tree = {"w": jnp.arange(512.0), "n": np.arange(3)}
    how = ocp.checkpoint_utils.construct_restore_args(tree)
    folder = tmp_path / "alone"
    with ocp.Checkpointer(mw.checkpoint_handler()) as checkpointer:
        checkpointer.save(folder, args=ocp.args.PyTreeSave(tree))
        args = ocp.args.PyTreeRestore(tree, restore_args=how)
        found = checkpointer.restore(folder, args=args)
        assert jax.tree.all(jax.tree.map(np.array_equal, found, tree))
        # What was saved before has a checksum of the file that Orbax writes again.
        sums = json.loads((folder / "checksums.json").read_text())
        sums["files"]["_CHECKPOINT_METADATA"] = [1, 2]
        (folder / "checksums.json").write_text(json.dumps(sums))
        checkpointer.restore(folder, args=args)
        flip(max(folder.rglob("d/*"), key=lambda file: file.stat().st_size))
        with pytest.raises(CheckpointError, match=r"is damaged: .* checksum differs"):
            checkpointer.restore(folder, args=args)


@jax.tree_util.register_pytree_with_keys_class
class Indexed:
    """A node whose children have the indices that it is given."""

    def __init__(self, indices: tuple[int, ...], children: list[Any]) -> None:
        self.indices, self.children = indices, children

    def tree_flatten_with_keys(self) -> Any:
        keys = map(jax.tree_util.SequenceKey, self.indices)
        return list(zip(keys, self.children, strict=True)), self.indices

    @classmethod
    def tree_unflatten(cls, indices: tuple[int, ...], children: Any) -> Indexed:
        return cls(indices, list(children))


@pytest.mark.parametrize("indices", [(0, 1), (1, 0), (0, 5), (10, 2, 1)])
def test_nodes_of_some_indices_are_restored(tmp_path: Path, indices: tuple[int, ...]) -> None:
    tree = {"node": Indexed(indices, [jnp.full(3, n) for n in indices]), "w": jnp.arange(4)}
    how = ocp.checkpoint_utils.construct_restore_args(tree)
    with ocp.CheckpointManager(tmp_path, item_handlers=mw.checkpoint_handler()) as manager:
        manager.save(1, args=ocp.args.PyTreeSave(tree))
        manager.wait_until_finished()
        found = manager.restore(1, args=ocp.args.PyTreeRestore(tree, restore_args=how))
    assert jax.tree.structure(found) == jax.tree.structure(tree)
    assert jax.tree.all(jax.tree.map(np.array_equal, found, tree))


def test_what_lies_in_the_memory_of_the_host_is_restored_there(tmp_path: Path) -> None:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    there = jax.sharding.NamedSharding(
        mesh, jax.sharding.PartitionSpec("x"), memory_kind="pinned_host"
    )

    def made(value: float) -> TrainState:
        moments = jax.device_put(jnp.full((16, 2), value), there)
        return TrainState(jnp.int32(4), {"w": jnp.ones((4, 2))}, ({"w": moments}, None))

    with Checkpoints(tmp_path, IDENTITY) as checkpoints:
        checkpoints.save(made(3.0), history(4))
        found, _ = checkpoints.restore(made(0.0))
    moments = found.opt_state[0]["w"]
    assert moments.sharding == there
    assert np.asarray(moments).tolist() == [[3.0, 3.0]] * 16
