"""The training loop: plan, start or resume, step, look at held-out text, save, sum up.

It decides nothing about parallelism and prints nothing: the plan comes from the step, and what
happens goes to a listener.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from meshwise.errors import CheckpointError, PlanError
from meshwise.plan.plan import Plan
from meshwise.runtime.job.job import Job, told_to_all
from meshwise.system.writable import probe_writable
from meshwise.train.checkpoint import Checkpoints
from meshwise.train.checkpoint_meta import check_resumable
from meshwise.train.given_plan import check_devices, check_given_plan, refusal
from meshwise.train.kept_plan import keep_plan, kept_plan
from meshwise.train.listener import Listener
from meshwise.train.loss_file import LossFile
from meshwise.train.options import TrainOptions
from meshwise.train.own_step import own_training
from meshwise.train.parallel import Follow, ParallelTrainStep, StepBuilder
from meshwise.train.run import SUMMARY, Run, summary_of
from meshwise.train.start import note_start
from meshwise.train.summary import (
    TrainSummary,
)
from meshwise.train.text_training import text_training
from meshwise.train.training import Training

CHECKPOINT_FOLDER = "checkpoints"


def run_training(
    options: TrainOptions,
    build: StepBuilder,
    listener: Listener,
    should_stop: Callable[[], bool] = lambda: False,
    job: Job | None = None,
    follow: Follow | None = None,
) -> TrainSummary:
    """Train until `options.steps`, from the newest checkpoint if there is one.

    A run that has all these steps and its summary is neither planned nor changed.

    Args:
        options: What to do.
        build: Parallelises the step.
        listener: Is told what happens.
        should_stop: Asked after each step; when true, the run saves and ends early.
        job: The processes that train together, of which process 0 writes the summary; None:
            this process alone.
        follow: Parallelises the held-out loss after the step; None: it runs under plain `jax.jit`.

    Returns:
        The summary, also in `summary.json` in the folder of the run; `losses.csv` there has the
        loss of each step.

    Raises:
        CheckpointError: nothing can be written to the folder of the run, or the checkpoints there
            are of another run, both found before planning; no checkpoint there can be restored; or
            the last state could not be saved.
        MeshwiseError: no plan, no text, a step of the user's own that cannot be trained, or a
            step that failed and took the state along.
    """
    started = time.perf_counter()
    check_given_plan(options)
    training = (text_training if options.step is None else own_training)(options)
    _check_folder(options.out)
    check_devices(options)
    kept = kept_plan(options, job)
    finished = _finished(options, training, job)
    if finished is not None:
        listener.on_finished(finished, kept)
        return finished
    _check_resumable(options, training, job)
    listener.on_start(options, training)
    step, kept = (_planned if options.plan is None else _given)(options, training, build, kept)
    plan = step.plan(*training.shapes)
    plan_s = time.perf_counter() - started
    listener.on_plan(plan, plan_s)
    state = step.init(training.create, training.seed, training.shapes[1])
    init_s = time.perf_counter() - started - plan_s
    listener.on_state(state, init_s)

    folder = options.out / CHECKPOINT_FOLDER
    writes = job is None or job.process == 0
    make_room = partial(_make_room, options)
    if job is None:
        make_room()
    else:
        job.from_first("the folder of checkpoints", make_room)
        should_stop = partial(_stops_all, job, should_stop)
    if writes:
        with suppress(OSError):  # Without it the next start plans anew.
            keep_plan(options, plan)
    with (
        Checkpoints(folder, training.identity, keep=options.keep) as checkpoints,
        told_to_all(job),
    ):
        run = Run(
            options=options,
            training=training,
            step=step,
            checkpoints=checkpoints,
            listener=listener,
            state=state,
            follow=None if follow is None else partial(follow, plan),
            anew=None if kept is None else lambda: _planned(options, training, build)[0],
        )
        del state
        run.resume()
        first_step = len(run.losses)
        with LossFile(options.out, run.losses) if writes else nullcontext() as run.loss_file:
            run.train(should_stop)
        newest = checkpoints.newest_step
    summary = replace(
        summary_of(run, plan, run.step.fidelity(run.state, training.shapes[1])),
        first_step=first_step,
        checkpoint="" if newest is None else str(folder / str(newest)),
        plan_s=plan_s,
        init_s=init_s,
        steps_s=sum(run.step_times_s, run.measured_s or 0.0),
        checkpoints_s=run.checkpoints_s,
        first_save_s=run.first_save_s or 0.0,
        wall_s=time.perf_counter() - started,
    )
    listener.on_end(summary)
    if writes:
        run.write_summary(summary)
    run.check_saved(summary)
    if job is None and summary.is_complete and not should_stop():
        run.sample()
    return summary


def _finished(options: TrainOptions, training: Training, job: Job | None) -> TrainSummary | None:
    """Return the summary of a run that has all its steps in a checkpoint that is whole, or None."""
    if options.fresh:
        return None

    def text() -> str:
        try:
            return (options.out / SUMMARY).read_text()
        except (OSError, ValueError):
            return ""

    try:
        told = text() if job is None else job.from_first("the summary of the run", text)
        summary = replace(TrainSummary.from_json(told), is_complete=True)
    except (ValueError, TypeError, KeyError):
        return None
    if summary.steps_done < options.steps:
        return None
    folder = options.out / CHECKPOINT_FOLDER
    with Checkpoints(folder, training.identity, keep=options.keep) as checkpoints:
        if not checkpoints.has_whole(summary.steps_done):
            return None
        return replace(summary, checkpoint=str(folder / str(checkpoints.newest_step)))


def _check_resumable(options: TrainOptions, training: Training, job: Job | None) -> None:
    """Find out whether the checkpoints are of this run, before minutes are spent on a plan.

    Raises:
        CheckpointError: they are of another one.
    """
    folder = (options.out / CHECKPOINT_FOLDER).absolute()
    if options.fresh:
        return
    check = partial(check_resumable, folder, training.identity, training.shapes[0])
    if job is None:
        check()
    else:
        job.from_first("whether the run goes on", check)


def _planned(
    options: TrainOptions, training: Training, build: StepBuilder, kept: Plan | None = None
) -> tuple[ParallelTrainStep, Plan | None]:
    """Return the step with a plan, and the plan that was kept if it is that one."""
    step = build(training.step, kept)
    try:
        step.plan(*training.shapes)
    except PlanError:
        if kept is None:
            raise
        # It is of another program.
        return _planned(options, training, build)
    return step, kept


def _given(
    options: TrainOptions, training: Training, build: StepBuilder, plan: Plan | None
) -> tuple[ParallelTrainStep, None]:
    """Return the step with the plan that the run is given.

    Raises:
        PlanError: it is of another program.
    """
    step = build(training.step, plan)
    try:
        step.plan(*training.shapes)
    except PlanError as error:
        raise refusal(options, error) from error
    return step, None


def _check_folder(out: Path) -> None:
    """Find out whether the folder of a run takes files, before minutes are spent on a plan.

    Raises:
        CheckpointError: it does not.
    """
    folder = out / CHECKPOINT_FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe_writable(folder)
    except OSError as error:
        raise CheckpointError(
            f"cannot write checkpoints to {folder}: {error.strerror or error}; make room there, or "
            "give another --out"
        ) from error


def _make_room(options: TrainOptions) -> str:
    """Remove the checkpoints of an earlier run if asked to, and return the name of their folder.

    Raises:
        CheckpointError: they cannot be removed.
    """
    folder = options.out / CHECKPOINT_FOLDER
    if options.fresh:
        try:
            if folder.exists():
                shutil.rmtree(folder)
            note_start(options.out, options.start)
        except OSError as error:
            raise CheckpointError(
                f"cannot remove the checkpoints in {folder}: {error.strerror or error}; remove "
                "them, or give another --out"
            ) from error
    return str(folder)


def _stops_all(job: Job, should_stop: Callable[[], bool]) -> bool:
    """Return whether any process was asked to stop: all stop after the same step."""
    return str(True) in job.exchange("whether to stop", str(should_stop()))
