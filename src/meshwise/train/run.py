"""A training run that goes on: it steps, looks at held-out text, saves, and sums up."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import jax

from meshwise.errors import CheckpointError, StateLostError
from meshwise.jax_compat.jaxprs import PyTree
from meshwise.plan.plan import Plan
from meshwise.report.host_stats import HostStats
from meshwise.runtime.donation import lost_before
from meshwise.runtime.fidelity import StageFidelity
from meshwise.simulate.timeline import Timeline
from meshwise.system.atomic_file import write_atomically
from meshwise.trace.step import abstract
from meshwise.train.checkpoint import Checkpoints
from meshwise.train.heldout import heldout_look
from meshwise.train.history import History
from meshwise.train.listener import Listener
from meshwise.train.loss_file import LossFile, metrics_in
from meshwise.train.options import TrainOptions
from meshwise.train.parallel import HeldoutLoss, ParallelTrainStep
from meshwise.train.sample import sampled
from meshwise.train.step import num_parameters
from meshwise.train.summary import (
    StageSummary,
    TrainSummary,
    total_bytes,
)
from meshwise.train.training import Training

SUMMARY = "summary.json"
_WARM_UP = 2  # Steps of a call before the one that is measured.
_WINDOW = 10  # Steps over which the first and the last loss are averaged.


@dataclass(slots=True, kw_only=True)
class Run:
    """A run that goes on.

    Attributes:
        options: What to do.
        training: What is trained.
        step: The parallelised step.
        checkpoints: Where the state is saved.
        listener: Is told what happens.
        state: The state after the last step.
        follow: Parallelises the held-out loss after the step; None: it runs under plain `jax.jit`.
        anew: Plans the step anew, for a batch of other shapes than the plan that was kept; None:
            the step has a plan of this call, and makes others itself.
        losses: Training loss of each step.
        heldout: Pairs (steps done, held-out loss).
        step_times_s: Seconds of the steps of this call, without the one that was measured mesh by
            mesh.
        timeline: What each mesh did in the step that was measured.
        measured_s: Seconds of that step.
        checkpoints_s: Seconds in which the run restored or saved its state, or waited for that.
        first_save_s: Seconds of these in which the first checkpoint of this call was begun.
        loss_file: The file of losses; None in processes that write none.
        saving: The step of the checkpoint that is being written; None if none is.
        unsaved: Why the checkpoint that was begun last is not there; None if it is.
        unwritten: Why other files of the run are not there.
    """

    options: TrainOptions
    training: Training
    step: ParallelTrainStep
    checkpoints: Checkpoints
    listener: Listener
    state: PyTree
    follow: Callable[[HeldoutLoss], HeldoutLoss] | None = None
    anew: Callable[[], ParallelTrainStep] | None = None
    losses: list[float] = field(default_factory=list[float])
    heldout: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    step_times_s: list[float] = field(default_factory=list[float])
    timeline: Timeline | None = None
    measured_s: float | None = None
    checkpoints_s: float = 0.0
    first_save_s: float | None = None
    loss_file: LossFile | None = None
    saving: int | None = None
    unsaved: str | None = None
    unwritten: list[str] = field(default_factory=list[str])

    @property
    def median_step_s(self) -> float:
        """Median time of the steps without a clock, or else of the one with it; 0 without any."""
        return statistics.median(self.step_times_s or [self.measured_s or 0.0])

    @contextmanager
    def _checkpoint_clock(self) -> Generator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.checkpoints_s += time.perf_counter() - began

    def resume(self) -> None:
        """Take the state of the newest checkpoint, if there is one."""
        if self.checkpoints.newest_step is not None:
            with self._checkpoint_clock():
                self.state, history = self.checkpoints.restore(self.state, self.listener.on_damaged)
            self.losses, self.heldout = list(history.losses), list(history.heldout)
            done = len(self.losses)
            self.step.saved(self.checkpoints.path(done))
            self.listener.on_resume(done)

    def train(self, should_stop: Callable[[], bool]) -> None:
        """Step until the end or until asked to stop; the last state is saved, if that can be."""
        options = self.options
        corpus, look = self.training.corpus, None
        if corpus is not None:
            look = heldout_look(options, corpus, self.follow)
        done = len(self.losses)
        if look is not None and done == 0:
            self._look_and_tell(look, done)
        stopped = False
        measured = min(done + _WARM_UP, options.steps - 1)
        while done < options.steps and not stopped:
            is_measured = options.measure and done == measured
            self._one_step(done, is_measured=is_measured)
            done += 1
            self._tell_when_saved(wait=False)
            stopped = should_stop()
            is_last = done == options.steps
            if look is not None and (done % options.eval_every == 0 or is_last):
                self._look_and_tell(look, done)
            if done % options.save_every == 0 or is_last or stopped:
                before_s = self.checkpoints_s
                with self._checkpoint_clock():
                    self._save(done)
                if self.first_save_s is None:
                    self.first_save_s = self.checkpoints_s - before_s
        with self._checkpoint_clock():
            self._tell_when_saved(wait=True)

    def _one_step(self, done: int, *, is_measured: bool) -> None:
        batch = self.training.batch(done)
        shapes = jax.tree.leaves(self.training.shapes[1])
        if self.anew is not None and [*map(abstract, jax.tree.leaves(batch))] != shapes:
            self.step, self.anew = self.anew(), None
            self._tell_newest()
        began = time.perf_counter()
        if is_measured:
            (self.state, result), self.timeline = self.step.measured(self.state, batch)
        else:
            self.state, result = self.step(self.state, batch)
        self.losses.append(float(self.training.loss(result)))  # Waits for the device.
        step_s = time.perf_counter() - began
        if self.loss_file is not None:
            self.loss_file.add(done + 1, self.losses[-1], metrics_in(result))
        if is_measured:
            assert self.timeline is not None
            self.measured_s = step_s
            self.listener.on_measured(done + 1, self.timeline, self.hosts())
        else:
            self.step_times_s.append(step_s)
        self.listener.on_step(done + 1, self.losses[-1], step_s)

    def hosts(self) -> tuple[HostStats, ...]:
        """Return what the processes did and hold; none before the first step."""
        has_run = self.step_times_s or self.measured_s is not None
        return self.step.stats()["hosts"] if has_run else ()

    def write_summary(self, summary: TrainSummary) -> None:
        """Write the summary beside the checkpoints.

        Args:
            summary: Of the run.
        """
        file = self.options.out / SUMMARY
        try:
            write_atomically(file, summary.to_json() + "\n")
        except OSError as error:
            self.unwritten.append(f"{file} is not written: {error}")

    def check_saved(self, summary: TrainSummary) -> None:
        """Check that the last state and the files of the run are on disk.

        Args:
            summary: Of the run.

        Raises:
            CheckpointError: one of them is not.
        """
        losses = "" if self.loss_file is None else self.loss_file.failure
        failures = [*filter(None, (self.unsaved, losses)), *self.unwritten]
        if failures:
            kept = "no checkpoint is there"
            if summary.checkpoint:
                kept = f"the newest checkpoint is {summary.checkpoint}"
            raise CheckpointError("; ".join([*failures, kept, "make room there, and run again"]))

    def sample(self) -> None:
        """Let a model on text write a text."""
        corpus = self.training.corpus
        if corpus is None:
            return
        try:
            sample = sampled(self.options, corpus, self.state.params)
        except jax.errors.JaxRuntimeError as error:  # as when memory runs out
            self.listener.on_unsampled(str(error))
        else:
            self.listener.on_sample(sample)

    def _check_state(self) -> None:
        # The loss is there before the update is done.
        try:
            lost_before(jax.tree.leaves(self.state))
        except StateLostError as error:
            self.checkpoints.settle()
            newest = self.checkpoints.newest_step
            if newest is None:
                raise
            path = self.checkpoints.path(newest)
            raise StateLostError(f"{error}; the last one is {path}") from error

    def _look_and_tell(self, look: Callable[[PyTree], float], done: int) -> None:
        self._check_state()
        loss = look(self.state.params)
        self.heldout.append((done, loss))
        self.listener.on_heldout(done, loss)

    def _save(self, done: int) -> None:
        self._check_state()
        self._tell_when_saved(wait=True)
        history = History(losses=tuple(self.losses), heldout=tuple(self.heldout))
        try:
            self.checkpoints.save(self.state, history)
        except CheckpointError as error:
            self._tell_unsaved(done, error)
            return
        # Where the run ends with an error, it waits until the checkpoint is complete.
        self.step.saved(self.checkpoints.path(done))
        self.saving = done

    def _tell_when_saved(self, *, wait: bool) -> None:
        """Tell of the checkpoint that was begun, if it is complete, or if it has failed."""
        if self.saving is None:
            return
        step = self.saving
        if wait:
            try:
                self.checkpoints.wait()
            except CheckpointError as error:
                self._tell_unsaved(step, error)
                return
        if wait or self.checkpoints.is_complete(step):
            self.listener.on_save(step, self.checkpoints.path(step))
            self.saving, self.unsaved = None, None

    def _tell_unsaved(self, step: int, error: CheckpointError) -> None:
        self.saving, self.unsaved = None, str(error)
        self._tell_newest()
        self.listener.on_unsaved(step, str(error))

    def _tell_newest(self) -> None:
        """Tell the step of the newest checkpoint, if there is one."""
        newest = self.checkpoints.newest_step
        if newest is not None:
            self.step.saved(self.checkpoints.path(newest))


def summary_of(run: Run, plan: Plan, fidelity: Sequence[StageFidelity]) -> TrainSummary:
    """Return the summary of a run but for its first step, checkpoint and seconds.

    Args:
        run: The run.
        plan: Of its step.
        fidelity: For each stage what its programs hold and move.
    """
    options, median_s = run.options, run.median_step_s
    stages = tuple(
        StageSummary.of(stage.mesh.num_devices, found, number, run.timeline)
        for number, (stage, found) in enumerate(zip(plan.stages, fidelity, strict=True))
    )
    window = max(1, min(_WINDOW, len(run.losses) // 2))
    summary = TrainSummary(
        step=options.step,
        num_devices=jax.device_count(),
        method=options.method if options.plan is None else "plan",
        steps_done=len(run.losses),
        is_complete=len(run.losses) >= options.steps,
        first_loss=statistics.fmean(run.losses[:window]),
        last_loss=statistics.fmean(run.losses[-window:]),
        loss_steps=window,
        final_loss=run.losses[-1],
        predicted_step_s=plan.step_time_s,
        median_step_s=median_s,
        is_median_measured=run.measured_s is not None and not run.step_times_s,
        predicted_peak_bytes=max(stage.predicted_peak_bytes for stage in stages),
        actual_peak_bytes=max(stage.actual_peak_bytes for stage in stages),
        predicted_collective_bytes=total_bytes(s.predicted_collective_bytes for s in stages),
        actual_collective_bytes=total_bytes(s.actual_collective_bytes for s in stages),
        num_microbatches=plan.num_microbatches,
        schedule=plan.schedule_choice,
        stages=stages,
        hosts=run.hosts(),
    )
    corpus = run.training.corpus
    if corpus is None:
        return summary
    return replace(
        summary,
        model=options.model,
        num_parameters=num_parameters(run.state),
        text=corpus.name,
        train_bytes=len(corpus.train),
        heldout_bytes=len(corpus.heldout),
        heldout_loss=run.heldout[-1][1],
        tokens_per_s=run.training.num_units / median_s if median_s else 0.0,
    )
