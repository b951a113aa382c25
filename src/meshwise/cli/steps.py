"""The step that a command is about: a model by name, or a function of the user's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, TypeAlias

import click

from meshwise.errors import TraceError
from meshwise.jax_compat.jaxprs import PyTree

if TYPE_CHECKING:
    from meshwise.models.steps import Config

# A step, its state and a batch.
Step: TypeAlias = tuple[Callable[..., PyTree], PyTree, PyTree]

_DEFAULT_BATCH = 1024
_WITHOUT_MODELS = "models by name need flax and optax: pip install 'meshwise[train]'"


def model_names() -> str:
    """Return the names of models for the help, or how to get them."""
    try:
        from meshwise.models.named import MODEL_NAMES
    except ModuleNotFoundError:
        return _WITHOUT_MODELS
    return ", ".join(MODEL_NAMES)


def chosen_step(
    model: str | None, step: str | None, batch: int | None, dtype: str, changes: Sequence[str] = ()
) -> Step:
    """Return the step of `--model` or `--step`, and shapes of its state and batch.

    Args:
        model: Name of a model; None where `step` is given.
        step: As "my_module:make"; None where `model` is given.
        batch: Rows of the batch of a model; None: the default.
        dtype: Type of the products of a model.
        changes: Fields of the model's configuration, as "seq_len=32768".

    Raises:
        click.UsageError: both or neither are given, or there is no such model, field or function.
    """
    if (model is None) == (step is None):
        raise click.UsageError("give either --model or --step")
    if model is not None:
        return _named(model, batch or _DEFAULT_BATCH, dtype, changes)
    if changes:
        raise click.UsageError("--config changes a --model, not a --step")
    if batch is not None:
        raise click.UsageError("--batch is for a --model; the batch of a --step has its own rows")
    return _own(step or "")


def _named(model: str, batch: int, dtype: str, changes: Sequence[str]) -> Step:
    try:
        from meshwise.models.named import model_config
        from meshwise.models.steps import model_step

        config = model_config(model, dtype=dtype)
        changed = dict(_field(config, change) for change in changes)
        return model_step(replace(config, **changed), batch).abstract
    except ModuleNotFoundError as error:
        raise click.UsageError(f"--model {model}: {_WITHOUT_MODELS}") from error
    except (ValueError, TypeError) as error:
        raise click.UsageError(f"--model {model}: {error}") from error


def _field(config: Config, change: str) -> tuple[str, object]:
    """Read "seq_len=32768" as a field of a configuration and its value.

    Raises:
        ValueError: there is no such field, or the value is none of its type.
    """
    name, _, text = change.partition("=")
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    if name not in values:
        raise ValueError(f"--config {change}: no field {name!r}; there are {', '.join(values)}")
    kind = type(values[name])
    if kind is bool:
        if text not in ("true", "false"):
            raise ValueError(f"--config {change}: {name} is true or false, not {text!r}")
        return name, text == "true"
    try:
        return name, kind(text)
    except ValueError as error:
        raise ValueError(
            f"--config {change}: {text!r} is no {kind.__name__}, as {values[name]!r} is"
        ) from error


def _own(step: str) -> Step:
    from meshwise.train.own_step import checked_step, made_step

    try:
        made = made_step(step)
    except TraceError as error:
        raise click.UsageError(str(error)) from error
    return checked_step(step, made.step), *made.shapes()
