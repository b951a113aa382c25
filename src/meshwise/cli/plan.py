"""`meshwise plan`: the fastest pipeline for a model on a cluster, without any device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click

from meshwise.api.arguments import positional_parameters
from meshwise.baselines.rival_method import RivalMethod
from meshwise.cli.option_names import shown
from meshwise.cli.outputs import check_writable, write_output
from meshwise.cli.params import (
    ByteSize,
    ClusterName,
    IntOrAuto,
    batch_option,
    config_option,
    dtype_option,
    offload_option,
    statistics_option,
    trace_option,
)
from meshwise.cli.search_text import plan_search_text
from meshwise.cli.steps import chosen_step, model_names
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import MeshwiseError
from meshwise.inter.cost_table.layer_records import LayerRecords
from meshwise.jax_compat.jaxprs import PyTree
from meshwise.plan.plan import Plan
from meshwise.plan.stage import REMATS, Remat
from meshwise.planner.kept_records import kept_records
from meshwise.planner.pipeline import plan_pipeline
from meshwise.planner.planned_pipeline import PlannedPipeline
from meshwise.report.html.page import plan_page
from meshwise.report.schedules import schedules_text
from meshwise.request.pipeline_pins import read_pins, split_pin
from meshwise.request.pipeline_request import PipelineRequest
from meshwise.resharding.cross_mesh.strategies import BROADCAST, STRATEGIES
from meshwise.schedules.registry import ALL, SEARCHED, choices, named
from meshwise.simulate.timeline import Timeline
from meshwise.simulate.trace import chrome_trace
from meshwise.system.collector import collection_paused
from meshwise.trace.step import Statistics, StepSignature
from meshwise.trainers.answer import TrainerAnswer
from meshwise.trainers.registry import TRAINERS

EXAMPLES = """
\b
Examples:
  meshwise plan --model gpt-2.6b --cluster "1x p3.16xlarge" --batch 1024
      Stages, submeshes, micro-batches and rematerialisation for a GPT on 8 V100.
\b
  meshwise plan --model gpt-39b --cluster "8x p3.16xlarge" --trace step.json
      64 GPUs; the simulated step for chrome://tracing or ui.perfetto.dev.
\b
  meshwise plan --model gpt-1.3b --cluster "1x dgx-h100" --dtype bfloat16 --verify
      A GPT on 8 H100, and what XLA:GPU says of its programs, without a GPU.
\b
  meshwise plan --model llama-70b --config seq_len=131072 --config param_dtype=bfloat16 \\
      --dtype bfloat16 --batch 32 --cluster "8x dgx-h100"
      A model whose configuration is changed: rows of 131,072 tokens.
\b
  meshwise plan --model gpt-6.7b --cluster "2x p3.16xlarge" --as megatron
      The options with which Megatron-LM is fastest there, and how much faster a free plan is.
\b
  meshwise plan --step my_module:make --cluster cluster.toml --json
      A step of your own: `make()` returns `(train_step, state, batch)`. State and batch are arrays
      or jax.ShapeDtypeStructs, or the functions that `meshwise train --step` takes; the rows of
      the batch are the first dim of each of its leaves. file.py:make names a file.
\b
  meshwise plan --model gpt-2.6b --cluster "2x dgx-a100" --pin stages=0-31,32-63 --pin mesh.0=2x4 \\
      --pin remat=full --pin microbatches=16 --pin "0/**/up/kernel=P(-, x)"
      What is fixed: the number of stages or their layers; submesh, mesh and remat of a stage by
      its number (`.0`), by a layer (`@12`) or of all; micro-batches; schedule; layouts by name.
"""


@click.command(epilog=EXAMPLES)
@click.option("--model", help=f"A model by name: {model_names()}.", metavar="NAME")
@click.option("--step", metavar="MODULE:NAME", help="A step of your own, see the examples.")
@click.option(
    "--cluster",
    type=ClusterName(),
    required=True,
    help="Hosts by name, as '8x dgx-h100'; a TPU slice, as v5e-256; virtual CPU devices of a "
    "machine with 16 GiB, as '8 cpu'; or a file. An unknown name is answered with the known ones.",
)
@batch_option
@dtype_option
@config_option
@click.option(
    "--layers",
    type=click.IntRange(1),
    help="Number of layers into which the model is cut. Default: one or more for each block of "
    "the model, as it repeats.",
)
@click.option(
    "--microbatches",
    "counts",
    multiple=True,
    type=IntOrAuto(),
    help="A number of micro-batches to try; may be repeated. auto, the default: powers of two.",
)
@click.option(
    "--stages",
    type=click.IntRange(1),
    help="Number of stages. Default: the fastest number, 1 included. (In Python the default "
    "is one mesh; mw.Auto(stages='auto') does what this command does.)",
)
@click.option(
    "--schedule",
    "schedules",
    multiple=True,
    type=click.Choice([*choices(), ALL]),
    help="A schedule to choose from; may be repeated; all: every one. By default every one but "
    "gpipe, which is never faster than eager-1f1b. The fastest by simulation is taken.",
)
@click.option(
    "--transfers",
    type=click.Choice(list(STRATEGIES)),
    default=BROADCAST,
    show_default=True,
    help="How tensors pass between hosts from stage to stage.",
)
@click.option(
    "--remat",
    "remats",
    multiple=True,
    type=click.Choice(REMATS),
    help="What the backward pass may compute again: nothing; all but dense products of weights; "
    "all of a layer. May be repeated. Default: none and full.",
)
@click.option(
    "--memory", type=ByteSize(), help="Memory of a device, as 14GiB; the cluster's by default."
)
@offload_option
@statistics_option
@click.option(
    "--pin",
    "pins",
    multiple=True,
    metavar="NAME=VALUE",
    help="A part of the plan that is fixed; may be repeated. See the examples.",
)
@click.option(
    "--all-devices/--any-devices",
    "use_all_devices",
    default=None,
    help="Use all devices, or let some stay idle. Default: all; where hosts differ, some may stay "
    "idle.",
)
@click.option(
    "--measure",
    is_flag=True,
    help="Time layers on this host's devices; the cluster may have no more devices than this host. "
    "The times are kept for later plans.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Compile the plan's programs with the compiler of its devices, which need not be here, "
    "and plan again with less memory until they fit.",
)
@click.option("--target", metavar="NAME", help="With --verify: for these devices, as h100.")
@click.option(
    "--as",
    "trainer",
    type=click.Choice(list(TRAINERS)),
    help=f"For another trainer ({', '.join(t.title for t in TRAINERS.values())}): print, in place "
    "of the plan, the options with which it is fastest, what it cannot express, and how much "
    "faster the free plan is, which may be any plan. --out writes the free plan.",
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="The plan as JSON.")
@click.option(
    "--cache/--no-cache",
    "uses_cache",
    default=True,
    help="Begin with what earlier plans found out about the same layers, and keep what this one "
    "finds out; the plan is the same with and without. On by default.",
)
@trace_option
@click.option(
    "--html",
    "html_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The plan and its simulated step as one HTML file with pictures.",
)
@click.option(
    "--rivals",
    "with_rivals",
    is_flag=True,
    help="With --html: price data parallelism, ZeRO and Megatron-LM's grid too, and show them "
    "beside the plan. May take longer than the plan; the page is first written without them.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: the plan, or with --as its answer."
)
@collection_paused()  # also while texts are written: one collection takes seconds
def plan(
    model: str | None,
    step: str | None,
    cluster: ClusterSpec,
    batch: int | None,
    dtype: str,
    changes: tuple[str, ...],
    layers: int | None,
    counts: tuple[int | str, ...],
    stages: int | None,
    schedules: tuple[str, ...],
    transfers: str,
    remats: tuple[Remat, ...],
    memory: int | None,
    offload: bool | None,
    statistics: Statistics,
    pins: tuple[str, ...],
    use_all_devices: bool | None,
    measure: bool,
    verify: bool,
    target: str | None,
    trainer: str | None,
    out: Path | None,
    uses_cache: bool,
    trace_file: Path | None,
    html_file: Path | None,
    with_rivals: bool,
    as_json: bool,
) -> None:
    """Find the fastest plan for a training step: stages, layouts, micro-batches, schedule.

    No device is needed, and none is touched, except with --measure. Times are predicted from the
    description of the cluster.
    """
    for path in filter(None, (out, trace_file, html_file)):
        check_writable(path)
    if target is not None and not verify:
        raise click.UsageError("--target goes with --verify")
    _check_trainer(trainer, cluster, is_free=not pins and not measure)
    _check_rivals(with_rivals, html_file, cluster, is_measured=measure)
    start = time.monotonic()

    def report(text: str) -> None:
        click.echo(f"{time.monotonic() - start:7.1f} s  {text}", err=True)

    report(plan_search_text(cluster, stages, memory))
    try:
        pinned = tuple(split_pin(pin) for pin in pins)
        read_pins(pinned)
    except MeshwiseError as error:
        raise click.UsageError(f"--pin: {error}") from error
    request = PipelineRequest(
        cluster=cluster,
        num_layers=layers,
        num_microbatches=tuple(n for n in counts if isinstance(n, int)) or None,
        num_stages=stages,
        schedules=tuple(dict.fromkeys(s for name in schedules for s in named(name))) or SEARCHED,
        transfers=transfers,
        remats=remats or (REMATS[0], REMATS[-1]),
        memory_bytes=memory,
        offload=offload,
        use_all_devices=use_all_devices,
        statistics=statistics,
        pins=pinned,
        measure=measure,
    )
    if verify:
        from meshwise.api.verify import check_target

        check_target(cluster, target)
    chosen = chosen_step(model, step, batch, dtype, changes)
    verified = ""
    with kept_records() if uses_cache else nullcontext() as records:
        planner = _Planner(request, chosen, report, records)
        if verify:
            from meshwise.cli.plan_verification import planned_until_it_fits

            planned, found_out = planned_until_it_fits(planner.plan, target, out, report)
            verified = found_out.explain()
        else:
            planned = planner.plan()
    found, timeline = planned.plan, planned.timeline
    name = ", ".join((model, dtype, *changes)) if model else step or ""
    found = replace(found, model=name)
    page = partial(plan_page, shown(found, "plan"), simulated=planned.simulated)
    unwritten = list(_unwritten(_texts(found, timeline, trace_file, html_file, out, page)))
    # What minutes were spent on is not lost with a disk that is full.
    is_lost = any(path == out for path, _ in unwritten)
    if trainer is None or is_lost:
        as_json = as_json or is_lost
        told = shown(found, "plan").explain() + schedules_text(planned.simulated)
        text = found.to_json() if as_json else told
        click.echo(text, nl=False)
    else:
        answer = _answer(trainer, planned, request, report)
        if answer.plan is not planned.plan:
            found = replace(answer.plan, model=found.model)
            page = partial(plan_page, shown(found, "plan"))
            texts = _texts(found, answer.timeline, trace_file, html_file, out, page)
            unwritten += _unwritten(texts)
        click.echo(answer.to_json() if as_json else answer.text(), nl=False)
    if verified:
        click.echo(f"\n{verified}", nl=False, err=as_json)
    _check_written(unwritten)
    if with_rivals:
        rivals = partial(_rivals, planned, request, report)
        texts = {html_file: partial(_page_with_rivals, page, rivals, report)}
        _check_written(list(_unwritten(texts)))


def _check_written(unwritten: Sequence[tuple[Path, str]]) -> None:
    """Say which files could not be written.

    Raises:
        click.ClickException: There are some.
    """
    if unwritten:
        told = "; ".join(dict(unwritten).values())
        raise click.ClickException(f"{told}; the plan is on the standard output")


def _check_trainer(trainer: str | None, cluster: ClusterSpec, *, is_free: bool) -> None:
    """Refuse what goes with no trainer.

    Raises:
        click.UsageError: the plan is not free, or hosts differ.
    """
    if trainer is None:
        return
    if not is_free:
        raise click.UsageError("--as compares with the free plan: leave --pin and --measure out")
    if cluster.is_mixed:
        raise click.UsageError(
            f"--as {trainer}: all hosts must be equal, and those of {cluster.name} differ"
        )


def _check_rivals(
    is_asked: bool, html_file: Path | None, cluster: ClusterSpec, *, is_measured: bool
) -> None:
    """Refuse --rivals with options that exclude it.

    Raises:
        click.UsageError: there is no page, the plan is measured, or hosts differ.
    """
    if not is_asked:
        return
    if html_file is None:
        raise click.UsageError("--rivals goes with --html, whose page shows them")
    if is_measured:
        raise click.UsageError(
            "--rivals are priced by formulas, and --measure by what was measured: leave one out"
        )
    if cluster.is_mixed:
        raise click.UsageError(
            f"--rivals: all hosts must be equal, and those of {cluster.name} differ"
        )


def _rivals(
    planned: PlannedPipeline, request: PipelineRequest, report: Callable[[str], None]
) -> tuple[RivalMethod, ...]:
    from meshwise.planner.rival_methods import rivals_of_pipeline

    return rivals_of_pipeline(planned, request, report)


def _page_with_rivals(
    page: Callable[..., str],
    rivals: Callable[[], Sequence[RivalMethod]],
    report: Callable[[str], None],
) -> str:
    """Return the page with the rivals beside the plan.

    Raises:
        click.Abort: the user stopped their search; the page that was written stays.
    """
    try:
        return page(rivals=rivals())
    except KeyboardInterrupt:
        report("stopped while rivals were priced; the files are complete, the page has no rivals")
        raise click.Abort from None


def _answer(
    trainer: str, planned: PlannedPipeline, request: PipelineRequest, report: Callable[[str], None]
) -> TrainerAnswer:
    from meshwise.planner.trainer_plan import trainer_answer

    return trainer_answer(TRAINERS[trainer], planned, request, report)


def _texts(
    plan: Plan,
    timeline: Timeline,
    trace: Path | None,
    page_file: Path | None,
    out: Path | None,
    page: Callable[[], str],
) -> dict[Path | None, Callable[[], str]]:
    """Return what is written to each file that is asked for."""
    return {
        trace: partial(chrome_trace, timeline),
        out: plan.to_json,
        page_file: page,
    }


def _unwritten(texts: Mapping[Path | None, Callable[[], str]]) -> Iterator[tuple[Path, str]]:
    """Write each file that is asked for, and yield those that could not be, and why."""
    for path, text in texts.items():
        if path is not None:
            try:
                write_output(path, text())
            except click.ClickException as error:
                yield path, error.message


@dataclass(frozen=True, slots=True)
class _Planner:
    """Plans the step for so much of the memory as it is told.

    Attributes:
        request: What is asked.
        step: A step, its state and its batch.
        report: Is told of progress.
        records: What was found out about layers before; None: nothing.
    """

    request: PipelineRequest
    step: tuple[Callable[..., PyTree], PyTree, PyTree]
    report: Callable[[str], None]
    records: LayerRecords | None

    def plan(self, share: float = 1.0) -> PlannedPipeline:
        """Plan for this share of the memory of every device."""
        asked = replace(self.request, memory_share=share)
        fun, *args = self.step
        found = zip(range(len(args)), positional_parameters(fun) or (), strict=False)
        signature = StepSignature(
            batch_argnums=(1,),
            batch_dims=0,
            donate_argnums="auto",
            parameters=tuple((number, parameter.name) for number, parameter in found),
        )
        return plan_pipeline(fun, tuple(args), {}, signature, asked, self.report, self.records)
