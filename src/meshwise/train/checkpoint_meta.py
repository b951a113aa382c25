"""What a checkpoint says beside its arrays, and whether a run may go on from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath

from meshwise.errors import CheckpointError
from meshwise.jax_compat.jaxprs import PyTree
from meshwise.train.checkpoint_trees import as_plain_tree
from meshwise.train.checksums import text_checksum
from meshwise.train.history import History
from meshwise.train.stage_arrays import checkpoint_handler

META_FILE = "metadata"
_MOST_LINES = 20
_NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class CheckpointMeta:
    """What a checkpoint says beside its arrays.

    Attributes:
        identity: Of the run that wrote it.
        history: Of that run.
        has_checksums: Whether its arrays have a file of checksums.
    """

    identity: dict[str, object]
    history: History
    has_checksums: bool


def steps_in(folder: Path) -> list[int]:
    """Return the steps of all complete checkpoints below a folder, ascending.

    Args:
        folder: Holds a folder for each checkpoint, which has the number of its step as its name.
    """
    # Not those of Orbax, which leaves out folders that lack some of its files.
    try:
        names = [path.name for path in folder.iterdir() if path.is_dir()]
    except OSError:
        return []
    numbers = {int(name) for name in names if name.isascii() and name.isdecimal()}
    return sorted(n for n in numbers if str(n) in names)


def meta_text(identity: Mapping[str, object], history: History) -> dict[str, Any]:
    """Return what is written beside the arrays of a checkpoint.

    Args:
        identity: Of the run.
        history: Of the run.
    """
    run = {"identity": identity, "history": history.to_json()}
    return {**run, "checksum": text_checksum(json.dumps(run, sort_keys=True))}


def read_meta(folder: Path, step: int) -> CheckpointMeta:
    """Read what a checkpoint says beside its arrays.

    Args:
        folder: Of all checkpoints.
        step: Of the checkpoint.

    Raises:
        OSError, ValueError: it is not there, or not what was written.
    """
    # Not through Orbax, which lets the processes of a job wait for one that fails here.
    path = folder / str(step) / "meta" / META_FILE
    try:
        value: Any = json.loads(path.read_text())
        if not isinstance(value, dict) or not isinstance(value.get("identity"), dict):
            raise ValueError("no object with the identity of a run")
        checksum = value.pop("checksum", None)
        if checksum not in (None, text_checksum(json.dumps(value, sort_keys=True))):
            raise ValueError("other values than were written (their checksum differs)")
        history = History.from_json(value.get("history"))
        if len(history.losses) != step:
            raise ValueError(f"losses of {len(history.losses)} steps")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} holds something else: {error}") from error
    return CheckpointMeta(value["identity"], history, checksum is not None)


def check_identity(
    folder: Path, step: int, saved: Mapping[str, object], here: Mapping[str, object]
) -> None:
    """Check that a checkpoint is of the run that is to go on.

    Args:
        folder: Of all checkpoints.
        step: Of the checkpoint.
        saved: What the checkpoint says of its run.
        here: The same of this run.

    Raises:
        CheckpointError: it is of another one; with what differs.
    """
    # Settings come before the many arrays, whose names have keys.
    names = sorted(saved.keys() | here.keys(), key=lambda name: (not name.isidentifier(), name))
    other = [
        f"  {name:.80}: {saved.get(name, _NOTHING)!s:.200} there, {here.get(name, _NOTHING)} here"
        for name in names
        if saved.get(name) != here.get(name)
    ]
    if len(other) > _MOST_LINES:
        other[_MOST_LINES:] = [f"  ... and {len(other) - _MOST_LINES} more"]
    if other:
        raise CheckpointError(
            f"the checkpoint of step {step} in {folder} is of another run:\n"
            + "\n".join(other)
            + "\nuse the settings of that run, another --out, or --fresh to start anew"
        )


def check_resumable(folder: Path, identity: Mapping[str, object], state: PyTree) -> str:
    """Check, before anything is planned, that a run may go on from the checkpoints in a folder.

    A damaged checkpoint is skipped here: only restoring finds out whether one is whole.

    Args:
        folder: Of all checkpoints; there may be none.
        identity: Of the run.
        state: Shapes of its state.

    Returns:
        An empty text. In a job every process gets what process 0 returns, or its error.

    Raises:
        CheckpointError: the newest one that can be read is of another run, or its state has other
            arrays.
    """
    for step in reversed(steps_in(folder)):
        try:
            meta = read_meta(folder, step)
            arrays = _saved_arrays(folder / str(step) / "state")
        except Exception:  # Orbax raises errors of any kind for files that are torn.
            continue
        check_identity(folder, step, meta.identity, identity)
        here = _arrays(as_plain_tree(state))
        keys = {n for n, x in here.items() if jnp.issubdtype(x.dtype, jax.dtypes.prng_key)}
        texts = [
            {f"state {name}": _text(x) for name, x in each.items() if name not in keys}
            for each in (arrays, here)
        ]
        check_identity(folder, step, *texts)
        break
    return ""


def _saved_arrays(folder: Path) -> dict[str, Any]:
    """Return what Orbax says of each array, by its path."""
    return _arrays(checkpoint_handler(verify=False).metadata(epath.Path(folder)).tree)


def _arrays(tree: PyTree) -> dict[str, Any]:
    paths = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in paths}


def _text(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"
