"""What `meshwise train` shows: the plan, a progress bar, held-out losses, the closing summary."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import jax
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from meshwise.cli.option_names import shown, with_options
from meshwise.cli.search_text import train_memory_text, train_search_text
from meshwise.cli.train_tables import layout_table, pipeline_table, plan_table
from meshwise.jax_compat.jaxprs import PyTree
from meshwise.kernels.folder import has_kernels
from meshwise.plan.plan import Plan
from meshwise.plan.record import ONE_PROGRAM
from meshwise.report.host_stats import HostStats, hosts_text
from meshwise.report.html.page import plan_page
from meshwise.simulate.timeline import Timeline
from meshwise.simulate.trace import chrome_trace
from meshwise.system.atomic_file import write_atomically
from meshwise.train.loss_file import FILE as LOSSES
from meshwise.train.options import TrainOptions
from meshwise.train.sample import Sample
from meshwise.train.summary import TrainSummary
from meshwise.train.training import Training
from meshwise.units import bytes_text, counted, seconds_text

# What the closing table compares with.
MEASURED = (
    "time: the median of whole calls of the step, from its arguments to its loss; "
    "memory and bytes: read from the compiled programs"
)
# Shorter parts of a call are not told.
_LEAST_S = 0.05


class TrainView:
    """A listener of the training loop that writes to a terminal; a context manager."""

    def __init__(
        self,
        *,
        use_stderr: bool,
        dump_plan: bool,
        trace_file: Path | None = None,
        html_file: Path | None = None,
        is_silent: bool = False,
    ) -> None:
        """Nothing is shown yet.

        Args:
            use_stderr: Leave standard output to the caller.
            dump_plan: Print the plan as JSON, too.
            trace_file: For the measured step.
            html_file: For the plan, in a pipeline with the simulated and the measured step.
            is_silent: Whether another process of the job says all this.
        """
        self._console = Console(stderr=use_stderr, highlight=False, quiet=is_silent)
        self._dump_plan = dump_plan
        self._trace_file, self._html_file = trace_file, html_file
        self._is_measured = False
        self._unwritten: list[str] = []
        self._plan: Plan | None = None
        self._options: TrainOptions | None = None
        self._training: Training | None = None
        self._progress = Progress(
            TextColumn("[bold]step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TextColumn("loss {task.fields[loss]:.3f}"),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            expand=True,
        )
        self._task: TaskID | None = None
        self._is_ready = False
        self._plan_warnings: list[str] = []
        self._ready_at = 0.0

    @property
    def unwritten(self) -> tuple[str, ...]:
        """Which files could not be written, and why."""
        return tuple(self._unwritten)

    @property
    def is_ready(self) -> bool:
        """Whether there is a plan and a state."""
        return self._is_ready

    def __enter__(self) -> Self:
        """Return the view."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was."""
        self._progress.stop()

    def note(self, text: str) -> None:
        """A line above the progress bar."""
        self._console.print(Text(text, style="dim"))

    def on_start(self, options: TrainOptions, training: Training) -> None:
        """Say what is trained on what."""
        self._options, self._training = options, training
        self._console.print(Text.assemble((training.name, "bold"), " ", training.about))
        devices = jax.devices()
        asked = f"micro-batches: {options.num_microbatches}, method: {options.method}"
        if options.plan is not None:
            asked = "the plan of --plan"
        self._console.print(
            f"{counted(len(devices), f'{devices[0].device_kind} device')}; {training.amount} a "
            f"step, {asked}"
        )
        if memory := train_memory_text(options):
            self.note(memory)
        once = "; the solver is compiled too, once, in a minute at most"
        self.note(f"{train_search_text(options)}{'' if has_kernels() else once}")

    def on_finished(self, summary: TrainSummary, plan: Plan | None) -> None:
        """Say so, and how to go on; the page needs no step."""
        done = summary.steps_done
        self._console.print(
            f"[bold]nothing to do[/]: the run has all its steps, {done} ({_losses(summary)}).\n"
            f"--steps {2 * done} goes on with it, --fresh begins anew\n"
            f"checkpoint: {summary.checkpoint}",
            soft_wrap=True,
        )
        if self._trace_file is not None:
            self._unwritten.append(f"no step was measured for {self._trace_file}")
        if self._html_file is not None and plan is not None:
            self._write(self._html_file, plan_page(shown(plan, "train")))
        elif self._html_file is not None:
            self._unwritten.append(f"no plan of these settings is kept for {self._html_file}")

    def on_plan(self, plan: Plan, plan_s: float) -> None:
        """Show the plan as a table."""
        self._plan = plan
        if self._dump_plan:
            self._console.print(plan.to_json(), soft_wrap=True, markup=False)
        is_one = plan.schedule == ONE_PROGRAM
        assert self._options is not None
        limit = self._options.memory_bytes
        self._console.print(
            plan_table(plan, plan_s, limit) if is_one else pipeline_table(plan, plan_s)
        )
        told = shown(plan, "train")
        for warning in dict.fromkeys((*self._plan_warnings, *told.warnings)):
            self._warn(warning)
        if is_one and self._html_file is not None:
            self._write(self._html_file, plan_page(told))
        self.note("compiling the step, then making the first state")

    def on_state(self, state: PyTree, init_s: float) -> None:
        """Show how the state lies."""
        assert self._plan is not None
        self._is_ready = True
        self._console.print(layout_table(state, self._plan))
        self.note(f"the step is compiled and the first state made, {seconds_text(init_s)} later")
        self._ready_at = time.perf_counter()

    def on_plan_warning(self, text: str) -> None:
        """Say what a plan warns of, below its tables.

        Args:
            text: The warning, after the name of the step.
        """
        warning = with_options(text.partition(": ")[2], "train")
        if self._plan is not None:
            self._warn(warning)
        else:
            self._plan_warnings.append(warning)

    def on_resume(self, step: int) -> None:
        """Say where the run goes on."""
        self.note(f"resumed from the checkpoint of step {step}")

    def on_step(self, step: int, loss: float, step_s: float) -> None:
        """Move the bar."""
        assert self._options is not None
        assert self._training is not None
        rate = self._training.rate_text(step_s)
        if self._task is None:
            first_s = time.perf_counter() - self._ready_at
            self.note(f"the first step is done, {seconds_text(first_s)} later")
            self._progress.start()
            self._task = self._progress.add_task(
                "", total=self._options.steps, completed=step, loss=loss, rate=rate
            )
        self._progress.update(self._task, completed=step, loss=loss, rate=rate)

    def on_heldout(self, step: int, loss: float) -> None:
        """A line with the held-out loss."""
        self._console.print(
            f"step {step:>6}  held-out loss {loss:.3f} nats = {loss / math.log(2):.3f} bits a byte"
        )

    def on_measured(self, step: int, timeline: Timeline, hosts: Sequence[HostStats]) -> None:
        """Write the files that were asked for."""
        self._is_measured = True
        self.note(
            f"step {step:>6}  measured mesh by mesh: {seconds_text(timeline.step_time_s)} from the "
            f"first instruction to the last, bubble {timeline.bubble_share:.1%}"
        )
        if self._trace_file is not None:
            self._write(self._trace_file, chrome_trace(timeline))
        if self._html_file is not None:
            assert self._plan is not None
            self._write(self._html_file, plan_page(shown(self._plan, "train"), timeline, hosts))

    def _write(self, file: Path, text: str) -> None:
        """Write a file; the run goes on without it."""
        try:
            write_atomically(file, text)
        except OSError as error:
            self._unwritten.append(f"could not write {file}: {error.strerror or error}")
            self.note(self._unwritten[-1])
        else:
            self.note(f"             wrote {file}")

    def on_save(self, step: int, path: Path) -> None:
        """A line with the path."""
        self.note(f"step {step:>6}  saved {path}")

    def on_unsaved(self, step: int, text: str) -> None:
        """A warning; the run goes on."""
        self._warn(f"{text}; the run goes on")

    def on_damaged(self, step: int, path: Path, text: str) -> None:
        """A warning with the place of the checkpoint."""
        self._warn(f"the checkpoint of step {step} is damaged and was not taken: {text}")
        self._warn(f"it is kept as {path}; the run goes on from an older one")

    def _warn(self, text: str) -> None:
        self._console.print("[yellow]warning:[/]", Text(text), soft_wrap=True)

    def on_end(self, summary: TrainSummary) -> None:
        """The closing summary: how it went, and predicted against measured."""
        self._progress.stop()
        assert self._options is not None
        assert self._training is not None
        state = "done" if summary.is_complete else "stopped"
        heldout = summary.heldout_loss
        self._console.print(
            f"[bold]{state}[/] after {counted(summary.steps_done, 'step')}: {_losses(summary)}"
            f"{'' if heldout is None else f', held-out {heldout:.3f}'}; "
            f"{self._training.rate_text(summary.median_step_s)}"
        )
        self._console.print(_seconds(summary))
        has_stages = self._options.has_stages
        files = (self._trace_file, self._html_file)
        unwritten = [str(x) for x in files if x is not None]
        if unwritten and not self._is_measured and has_stages:
            self.note(
                f"no step was measured: the run ended before; not written: {', '.join(unwritten)}"
            )
        table = Table(
            title="predicted against measured, a step", title_justify="left", caption=MEASURED
        )
        table.caption_justify = "left"
        table.add_column("")
        for name in ("predicted", "measured", "ratio"):
            table.add_column(name, justify="right")
        if summary.median_step_s:
            what = "time, clocked mesh by mesh" if summary.is_median_measured else "time"
            _compare(table, what, summary.predicted_step_s, summary.median_step_s, seconds_text)
        for number, stage in enumerate(summary.stages):
            where = f"stage {number}: " if len(summary.stages) > 1 else ""
            predicted, actual = stage.predicted_peak_bytes, stage.actual_peak_bytes
            what = f"{where}memory of the fullest device"
            _compare(table, what, predicted, actual, bytes_text)
            planned, compiled = stage.predicted_collective_bytes, stage.actual_collective_bytes
            for kind in sorted(planned.keys() | compiled.keys()):
                amounts = planned.get(kind, 0), compiled.get(kind, 0)
                _compare(table, where + kind, *amounts, bytes_text)
        self._console.print(table)
        if len(summary.hosts) > 1:
            self._console.print(hosts_text(summary.hosts), markup=False)
        self._console.print(f"losses: {self._options.out / LOSSES}", soft_wrap=True)
        self._console.print(f"checkpoint: {summary.checkpoint or 'none'}", soft_wrap=True)
        if self._html_file is None:
            self.note("the plan as a page with pictures: --html plan.html")
        if self._trace_file is None and has_stages:
            self.note("a step as it ran, for Chrome or Perfetto: --trace step.json")

    def on_unsampled(self, text: str) -> None:
        """A warning; the run is saved."""
        self._warn(f"no sample of the model's text: {text}")

    def on_sample(self, sample: Sample) -> None:
        """A text that the model wrote after some held-out text."""
        self._console.print("[bold]sample[/]: held-out text, and in green what the model goes on")
        self._console.print(
            Text(_printable(sample.prompt)).append(_printable(sample.text), style="green")
        )


def _printable(text: str) -> str:
    """Return a text without what a terminal would obey."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{MIDDLE DOT}" for c in text)


def _seconds(summary: TrainSummary) -> str:
    """Return where the seconds of the call went, the largest parts by name."""
    parts = {
        "plan": summary.plan_s,
        "compiling and first state": summary.init_s,
        "steps": summary.steps_s,
        "checkpoints": summary.checkpoints_s,
    }
    parts["other"] = summary.wall_s - sum(parts.values())
    more = {"checkpoints": _first_save(summary)}
    told = ", ".join(
        f"{name} {s:.1f} s{more.get(name, '')}" for name, s in parts.items() if s >= _LEAST_S
    )
    return f"{summary.wall_s:.1f} s in this call{f': {told}' if told else ''}"


def _first_save(summary: TrainSummary) -> str:
    first_s = summary.first_save_s
    return f" (the first {first_s:.1f} s, in which Orbax starts)" if first_s >= _LEAST_S else ""


def _losses(summary: TrainSummary) -> str:
    many = summary.loss_steps
    means = f" (means of the first {many} steps and the last {many})" if many > 1 else ""
    return f"loss {summary.first_loss:.3f} -> {summary.last_loss:.3f}{means}"


def _compare(
    table: Table, what: str, predicted: float, actual: float, text: Callable[[float], str]
) -> None:
    ratio = f"{predicted / actual:.2f}" if actual else "-"
    table.add_row(what, text(predicted), text(actual), ratio)
