"""The training loop: plan, start or resume, step, look at held-out text, save, sum up.

It decides nothing about parallelism and prints nothing: the plan comes from the step, and what
happens goes to a listener.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jax

from meshwise.errors import StateLostError
from meshwise.models.sizes.gpt_sizes import num_parameters
from meshwise.plan.plan import Plan
from meshwise.runtime.donation import lost_before
from meshwise.simulate.timeline import Timeline
from meshwise.system.atomic_file import write_atomically
from meshwise.train.checkpoint import Checkpoints
from meshwise.train.corpus import Corpus, load_corpus
from meshwise.train.heldout import heldout_look
from meshwise.train.history import History
from meshwise.train.options import TrainOptions
from meshwise.train.parallel import ParallelTrainStep, StepBuilder
from meshwise.train.step import TrainState, state_creator, train_step_of
from meshwise.train.summary import (
    StageSummary,
    TrainSummary,
    total_bytes,
)

CHECKPOINT_FOLDER = "checkpoints"
_WARM_UP = 2  # Steps of a call before the one that is measured.
_WINDOW = 10  # Steps over which the first and the last loss are averaged.


class Listener(Protocol):
    """What happens in a run, as it happens."""

    def on_start(self, options: TrainOptions, corpus: Corpus, num_params: int) -> None:
        """The text is read; planning begins."""
        ...

    def on_plan(self, plan: Plan, state: TrainState, plan_s: float) -> None:
        """The plan is found and the state lies as it says."""
        ...

    def on_resume(self, step: int) -> None:
        """A checkpoint was restored."""
        ...

    def on_step(self, step: int, loss: float, step_s: float) -> None:
        """A step is done."""
        ...

    def on_heldout(self, step: int, loss: float) -> None:
        """The held-out text was looked at."""
        ...

    def on_measured(self, step: int, timeline: Timeline) -> None:
        """A step was timed mesh by mesh."""
        ...

    def on_save(self, step: int, path: Path) -> None:
        """A checkpoint is complete."""
        ...


@dataclass(slots=True, kw_only=True)
class _Run:
    """The moving part of a run.

    `step_times_s`: seconds of the steps of this call, without the one that was measured mesh by
    mesh, which took `measured_s`.
    """

    state: TrainState
    losses: list[float]
    heldout: list[tuple[int, float]]
    step_times_s: list[float]
    timeline: Timeline | None = None
    measured_s: float | None = None

    @property
    def median_step_s(self) -> float:
        """Of the steps without a clock beside them, or else of the one with it; 0 without any."""
        return statistics.median(self.step_times_s or [self.measured_s or 0.0])

    @property
    def history(self) -> History:
        return History(losses=tuple(self.losses), heldout=tuple(self.heldout))


def run_training(
    options: TrainOptions,
    build: StepBuilder,
    listener: Listener,
    should_stop: Callable[[], bool] = lambda: False,
) -> TrainSummary:
    """Train until `options.steps`, from the newest checkpoint if there is one.

    Args:
        options: What to do.
        build: Parallelises the step.
        listener: Is told what happens.
        should_stop: Asked after each step; when true, the run saves and ends early.

    Returns:
        The summary, also written to `summary.json` in the folder of the run.

    Raises:
        MeshwiseError: no plan, no text, a checkpoint of another run, or a step that failed and
            took the state along.
    """
    started = time.perf_counter()
    corpus = load_corpus(options.text, seq=options.seq)
    num_params = num_parameters(options.gpt())
    listener.on_start(options, corpus, num_params)

    step = build(train_step_of(options))
    create_state, key = state_creator(options), jax.random.key(options.seed)
    first_batch = corpus.batch_at(0, batch=options.batch, seq=options.seq, seed=options.seed)
    plan = step.plan(jax.eval_shape(create_state, key), first_batch)
    plan_s = time.perf_counter() - started
    state = step.init(create_state, key, first_batch)
    listener.on_plan(plan, state, plan_s)

    folder = options.out / CHECKPOINT_FOLDER
    if options.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    with Checkpoints(folder, _identity(options, corpus)) as checkpoints:
        run = _Run(state=state, losses=[], heldout=[], step_times_s=[])
        if checkpoints.newest_step is not None:
            run.state, history = checkpoints.restore(state)
            run.losses, run.heldout = list(history.losses), list(history.heldout)
            done = int(run.state.step)
            step.saved(checkpoints.path(done))
            listener.on_resume(done)
        first_step = int(run.state.step)
        _train(options, corpus, step, run, checkpoints, listener, should_stop)
        newest = checkpoints.newest_step

    fidelity = step.fidelity(run.state, first_batch)
    stages = tuple(
        StageSummary.of(stage.mesh.num_devices, found, number, run.timeline)
        for number, (stage, found) in enumerate(zip(plan.stages, fidelity, strict=True))
    )
    window = max(1, min(_WINDOW, len(run.losses) // 2))
    summary = TrainSummary(
        model=options.model,
        num_parameters=num_params,
        text=corpus.name,
        train_bytes=len(corpus.train),
        heldout_bytes=len(corpus.heldout),
        num_devices=jax.device_count(),
        method=options.method,
        first_step=first_step,
        steps_done=len(run.losses),
        is_complete=len(run.losses) >= options.steps,
        first_loss=statistics.fmean(run.losses[:window]),
        last_loss=statistics.fmean(run.losses[-window:]),
        heldout_loss=run.heldout[-1][1],
        tokens_per_s=_tokens_per_s(options, run),
        predicted_step_s=plan.step_time_s,
        median_step_s=run.median_step_s,
        is_median_measured=run.measured_s is not None and not run.step_times_s,
        predicted_peak_bytes=max(stage.predicted_peak_bytes for stage in stages),
        actual_peak_bytes=max(stage.actual_peak_bytes for stage in stages),
        predicted_collective_bytes=total_bytes(s.predicted_collective_bytes for s in stages),
        actual_collective_bytes=total_bytes(s.actual_collective_bytes for s in stages),
        num_microbatches=plan.num_microbatches,
        schedule=plan.schedule,
        stages=stages,
        checkpoint=str(folder / str(newest)),
        plan_s=plan_s,
        wall_s=time.perf_counter() - started,
    )
    write_atomically(options.out / "summary.json", summary.to_json() + "\n")
    return summary


def _identity(options: TrainOptions, corpus: Corpus) -> dict[str, Any]:
    return {**options.identity(), "text": corpus.fingerprint}


def _tokens_per_s(options: TrainOptions, run: _Run) -> float:
    median = run.median_step_s
    return options.batch * options.seq / median if median else 0.0


def _train(
    options: TrainOptions,
    corpus: Corpus,
    step: ParallelTrainStep,
    run: _Run,
    checkpoints: Checkpoints,
    listener: Listener,
    should_stop: Callable[[], bool],
) -> None:
    """Steps until the end or until asked to stop; leaves the last state saved."""
    look = heldout_look(options, corpus)

    def check_state() -> None:
        # The loss is there before the update is done.
        try:
            lost_before(jax.tree.leaves(run.state))
        except StateLostError as error:
            newest = checkpoints.newest_step
            if newest is None:
                raise
            raise StateLostError(f"{error}; the last one is {checkpoints.path(newest)}") from error

    def look_and_tell(done: int) -> None:
        check_state()
        loss = look(run.state.params)
        run.heldout.append((done, loss))
        listener.on_heldout(done, loss)

    def save_and_tell(done: int) -> None:
        check_state()
        path = checkpoints.save(run.state, run.history)
        step.saved(path)
        listener.on_save(done, path)

    done = len(run.losses)
    if done == 0:
        look_and_tell(done)
    stopped = False
    measured = min(done + _WARM_UP, options.steps - 1)
    while done < options.steps and not stopped:
        batch = corpus.batch_at(done, batch=options.batch, seq=options.seq, seed=options.seed)
        is_measured = options.measure and done == measured
        began = time.perf_counter()
        if is_measured:
            (run.state, loss), run.timeline = step.measured(run.state, batch)
        else:
            run.state, loss = step(run.state, batch)
        run.losses.append(float(loss))  # Waits for the device.
        step_s = time.perf_counter() - began
        done += 1
        if is_measured:
            assert run.timeline is not None
            run.measured_s = step_s
            listener.on_measured(done, run.timeline)
        else:
            run.step_times_s.append(step_s)
        listener.on_step(done, run.losses[-1], step_s)
        stopped = should_stop()
        is_last = done == options.steps
        if done % options.eval_every == 0 or is_last:
            look_and_tell(done)
        if done % options.save_every == 0 or is_last or stopped:
            save_and_tell(done)
