"""What `meshwise train` shows: the plan, a progress bar, held-out losses, the closing summary."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

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
from meshwise.jax_compat.arrays import HOST_MEMORY
from meshwise.jax_compat.jaxprs import PyTree
from meshwise.kernels.folder import has_kernels
from meshwise.plan.counts.collectives import collective_sums
from meshwise.plan.plan import Plan
from meshwise.plan.record import ONE_PROGRAM
from meshwise.plan.text.columns import dims_text, with_place
from meshwise.plan.text.explain import mesh_text
from meshwise.plan.text.optimum import optimum_text
from meshwise.report.host_stats import HostStats, hosts_text
from meshwise.report.html.page import plan_page
from meshwise.simulate.timeline import Timeline
from meshwise.simulate.trace import chrome_trace
from meshwise.system.atomic_file import write_atomically
from meshwise.train.loss_file import FILE as LOSSES
from meshwise.train.options import TrainOptions
from meshwise.train.sample import Sample
from meshwise.train.step import TrainState
from meshwise.train.summary import TrainSummary
from meshwise.train.training import Training
from meshwise.units import bytes_text, counted, flop_text, range_text, seconds_text

# The number of a layer in a name, as in "params/block_3/up".
_NUMBER = re.compile(r"(?<=[_/])\d+(?=/)")


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


def layout_table(state: PyTree, plan: Plan) -> Table:
    """Return how the state lies on the devices; equal layers share a row.

    Args:
        state: A `TrainState`, whose parameters and optimizer state are told apart; or any other.
        plan: Whose stages hold it.
    """
    params, opt_state = state, None
    columns = ["array", "shape", "count", "layout"]
    if isinstance(state, TrainState):
        params, opt_state = state.params, state.opt_state
        columns = ["parameter", "shape", "count", "layout", "moments"]
    moments: dict[str, list[str]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(opt_state):
        # Optax keeps a tree like that of the parameters below each moment.
        for depth in range(len(path)):
            moments.setdefault(_name(path[depth:]), []).append(_layout(leaf))
    rows: dict[tuple[str, ...], list[str]] = {}
    has_stages = len(plan.stages) > 1
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = _name(path)
        kept = (", ".join(dict.fromkeys(moments.get(name, []))),) if opt_state is not None else ()
        where = (_holders(leaf, plan),) if has_stages else ()
        shape = "x".join(map(str, leaf.shape)) or "scalar"
        row = (_NUMBER.sub("*", name), shape, *where, _layout(leaf), *kept)
        rows.setdefault(row, []).append(name)
    mesh = _mesh(jax.tree.leaves(params)[0])
    told = "P(-, x): dim 0 is whole, dim 1 is split over axis x"
    if has_stages:
        mesh = _stages_title(plan)
        told += "; stages: over the stages that hold it"
        columns.insert(2, "stage" if _is_one_to_one(plan) else "mesh")
    table = Table(title=f"state on {mesh} ({told})", title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    count = columns.index("count")
    for (pattern, *cells), names in sorted(rows.items(), key=lambda row: row[0][0]):
        row = [pattern if len(names) > 1 else names[0], *cells]
        table.add_row(*row[:count], str(len(names)), *row[count:])
    return table


def plan_table(plan: Plan, plan_s: float, limit: int | None = None) -> Table:
    """Return what the plan promises for a step; `meshwise train --dump-plan` shows all of it.

    Args:
        plan: The plan, of one mesh.
        plan_s: Seconds in which it was found.
        limit: Bytes that a device may hold, as it was asked for; None: what it has.
    """
    table = Table(title=f"plan, found in {plan_s:.1f} s", title_justify="left", show_header=False)
    replicated = plan.replicated
    table.add_row("method", plan.method)
    table.add_row("search", optimum_text(plan))
    table.add_row("mesh", mesh_text(plan.mesh))
    table.add_row("micro-batches", str(plan.num_microbatches))
    table.add_row("predicted time", seconds_text(plan.step_time_s))
    most = bytes_text(plan.mesh.device.memory_bytes if limit is None else limit)
    table.add_row("predicted memory", f"{bytes_text(plan.peak_bytes)} of {most} a device")
    table.add_row("dense work", f"{flop_text(plan.device_flop)} a device")
    table.add_row(
        "replicated",
        f"{replicated.flop_share:.2%} of FLOP, {replicated.bytes_share:.2%} of bytes",
    )
    for (_, kind, axes, _), (count, num_bytes, _) in sorted(
        collective_sums(plan.collectives, [plan.mesh]).items()
    ):
        what = f"{kind} over {' '.join(axes)}"
        table.add_row(what, f"{counted(count, 'time')}, {bytes_text(num_bytes)} in all")
    return table


def pipeline_table(plan: Plan, plan_s: float) -> Table:
    """Return what the plan of a pipeline promises for a step, stage by stage."""
    title = (
        f"plan, found in {plan_s:.1f} s: {counted(len(plan.stages), 'stage')}, "
        f"{counted(plan.num_microbatches, 'micro-batch')}, schedule {plan.schedule}; predicted "
        f"{seconds_text(plan.step_time_s)} a step, bubble {plan.bubble_share:.1%}"
    )
    table = Table(title=title, title_justify="left")
    for name in ("stage", "layers", "devices", "mesh", "remat"):
        table.add_column(name)
    for name in ("forward", "backward", "once", "memory"):
        table.add_column(name, justify="right")
    for number, stage in enumerate(plan.stages):
        table.add_row(
            str(number),
            range_text(stage.first_layer, stage.last_layer),
            range_text(stage.first_device, stage.first_device + stage.num_devices - 1),
            "x".join(map(str, stage.mesh.sizes)),
            stage.remat,
            *map(seconds_text, (stage.forward_s, stage.backward_s, stage.once_s)),
            bytes_text(stage.peak_bytes),
        )
    return table


def _is_one_to_one(plan: Plan) -> bool:
    """Return whether each stage has a mesh of its own."""
    return plan.num_meshes == len(plan.stages)


def _stages_title(plan: Plan) -> str:
    """Return how many stages there are, and which of them share a mesh."""
    text = counted(len(plan.stages), "stage")
    if _is_one_to_one(plan):
        return text
    stages: dict[int, list[int]] = {}
    for stage, mesh in enumerate(plan.mesh_of_stage):
        stages.setdefault(mesh, []).append(stage)
    shared = "; ".join(f"mesh {m}: stages {_numbers(found)}" for m, found in stages.items())
    return f"{text}, {shared}"


def _holders(leaf: jax.Array, plan: Plan) -> str:
    """Return the numbers of the meshes that hold an array: of their stages, if these are one each.

    Devices of a plan are numbered as JAX lists them.
    """
    numbers = {device: number for number, device in enumerate(jax.devices())}
    mine = {numbers[device] for device in leaf.sharding.device_set}
    found = {
        mesh
        for mesh, stage in zip(plan.mesh_of_stage, plan.stages, strict=True)
        if not mine.isdisjoint(range(stage.first_device, stage.first_device + stage.num_devices))
    }
    return _numbers(sorted(found))


def _numbers(numbers: Sequence[int]) -> str:
    """Return numbers in their order, a run of more than two as `0-3`."""
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 2 and last - first == len(numbers) - 1:
        return f"{first}-{last}"
    return ", ".join(map(str, numbers))


def _name(path: tuple[object, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _mesh(leaf: jax.Array) -> str:
    if not isinstance(leaf.sharding, jax.sharding.NamedSharding):
        return "one device"
    return "mesh " + ", ".join(f"{n}={s}" for n, s in leaf.sharding.mesh.shape.items())


def _layout(leaf: jax.Array) -> str:
    """Return how an array lies, as plans write it: `P(-, (x, y))`."""
    entries: tuple[Any, ...] = ()
    if isinstance(leaf.sharding, jax.sharding.NamedSharding):
        entries = tuple(leaf.sharding.spec)
    entries += (None,) * (leaf.ndim - len(entries))
    dims = [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in entries]
    return with_place(dims_text(dims), in_host=leaf.sharding.memory_kind == HOST_MEMORY)


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
