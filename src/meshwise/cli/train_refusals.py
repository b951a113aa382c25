"""Options of `meshwise train` that do not go together; told before anything is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from meshwise.plan.plan import Plan
from meshwise.plan.record import ONE_PROGRAM
from meshwise.train.options import has_dropout

# Options of the built-in models, refused with a step of the user's own.
_OF_MODELS = ("text", "model", "seq", "batch", "lr", "dropout", "eval_every")


def check_hosts(hosts: int, max_restarts: int, *, ray: bool, as_json: bool) -> None:
    """Refuse what does not go together.

    Raises:
        click.UsageError: naming the option.
    """
    if max_restarts and (ray or hosts == 1):
        raise click.UsageError("--max-restarts needs --hosts 2 or more; with --ray, set it in Ray")
    if ray and as_json:
        raise click.UsageError("--ray marks the lines of hosts: --json is summary.json in --out")


def check_own(ctx: click.Context) -> None:
    """Refuse options of the models with a step of the user's own.

    Raises:
        click.UsageError: naming the options.
    """
    given = [
        option.opts[0]
        for option in ctx.command.params
        if option.name in _OF_MODELS
        and ctx.get_parameter_source(option.name) is not click.core.ParameterSource.DEFAULT
    ]
    if given:
        raise click.UsageError(
            f"--step brings its own model, data and optimizer: {', '.join(given)} "
            f"{'is' if len(given) == 1 else 'are'} for models by name; leave one or the other out"
        )


def check_dropout(settings: Mapping[str, Any]) -> None:
    """Refuse dropout for a model that has none.

    Raises:
        click.UsageError: naming the option.
    """
    if settings["dropout"] and not has_dropout(settings["model"]):
        raise click.UsageError(
            f"--dropout: {settings['model']} has none; leave it out, or train a GPT"
        )


def check_stages(
    settings: Mapping[str, object], plan: Plan | None = None, *, has_trace: bool
) -> None:
    """Refuse options that contradict each other, and those of pipelines where none was asked for.

    Args:
        settings: Options by name.
        plan: The plan that is to run, which says whether there are stages; None: one is searched.
        has_trace: Whether a measured step is asked for.

    Raises:
        click.UsageError: naming the option.
    """
    if settings["offload"] and (settings["method"] != "auto" or settings["mesh"] is not None):
        raise click.UsageError(
            "--offload goes with --method auto and without --mesh; leave out one or the other"
        )
    if plan is not None:
        if has_trace and plan.schedule == ONE_PROGRAM:
            raise click.UsageError("--trace is of a pipeline; the plan of --plan has no stages")
        return
    if settings["stages"] is None:
        given = {"--schedule": settings["schedule"] is not None, "--trace": has_trace}
        for name in (name for name, is_given in given.items() if is_given):
            raise click.UsageError(f"{name} is of a pipeline; give --stages, too")
        return
    if settings["method"] != "auto":
        raise click.UsageError(
            f"--stages goes with --method auto, not with {settings['method']}, which is a plan for "
            "one mesh"
        )
    if settings["mesh"] is not None:
        raise click.UsageError(
            "--mesh is the shape of one mesh; with --stages each stage has its own, which the "
            "planner chooses"
        )
