"""The step that a command is about: a model by name, or a function of the user's."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import TypeAlias

import click

from meshwise.jax_compat import PyTree

# A step, its state and a batch.
Step: TypeAlias = tuple[Callable[..., PyTree], PyTree, PyTree]

_WITHOUT_MODELS = "models by name need flax and optax: pip install 'meshwise[train]'"


def model_names() -> str:
    """Return the names of models for the help, or how to get them."""
    try:
        from meshwise.models.named import MODEL_NAMES
    except ModuleNotFoundError:
        return _WITHOUT_MODELS
    return ", ".join(MODEL_NAMES)


def chosen_step(model: str | None, step: str | None, batch: int, dtype: str) -> Step:
    """Return the step of `--model` or `--step`, and shapes of its state and batch.

    Args:
        model: Name of a model; None where `step` is given.
        step: As "my_module:make"; None where `model` is given.
        batch: Rows of the batch of a model.
        dtype: Type of the products of a model.

    Raises:
        click.UsageError: both or neither are given, or there is no such model or function.
    """
    if (model is None) == (step is None):
        raise click.UsageError("give either --model or --step")
    return _own(step or "") if model is None else _named(model, batch, dtype)


def _named(model: str, batch: int, dtype: str) -> Step:
    try:
        from meshwise.models.named import model_config
        from meshwise.models.steps import model_step

        return model_step(model_config(model, dtype=dtype), batch).abstract
    except ModuleNotFoundError as error:
        raise click.UsageError(f"--model {model}: {_WITHOUT_MODELS}") from error
    except (ValueError, TypeError) as error:
        raise click.UsageError(f"--model {model}: {error}") from error


def _own(step: str) -> Step:
    module, separator, name = step.partition(":")
    if not separator:
        raise click.UsageError(f"--step {step!r}: write it as my_module:make")
    sys.path.insert(0, "")
    try:
        make = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise click.UsageError(f"--step {step}: {error}") from error
    made = make()
    if not isinstance(made, tuple) or len(made) != 3:
        raise click.UsageError(f"--step {step}: it must return (train_step, state, batch)")
    return made
