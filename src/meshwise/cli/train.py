"""`meshwise train`: the main job."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import jax

from meshwise.cli.outputs import check_writable
from meshwise.cli.params import (
    ByteSize,
    ClusterName,
    IntOrAuto,
    MeshShape,
    MethodName,
    offload_option,
)
from meshwise.cli.plan_warnings import plan_warnings_shown
from meshwise.cli.stop_signals import StopFlag, signals_set
from meshwise.cli.train_hosts import (
    ArgumentsKept,
    is_in_job,
    join_job,
    name_of_start,
    run_on_hosts,
    run_on_ray,
)
from meshwise.cli.train_refusals import check_dropout, check_hosts, check_own, check_stages
from meshwise.cli.train_view import TrainView
from meshwise.models.sizes.gpt_sizes import gpt_config
from meshwise.report.plan_file import plan_from_file
from meshwise.runtime.job.job import Job, current_job, told_to_all
from meshwise.schedules.registry import ALL, choices
from meshwise.system.progress import shown
from meshwise.train.build import followed, step_builder
from meshwise.train.given_plan import check_given_plan
from meshwise.train.loop import run_training
from meshwise.train.options import TRAINED_MODELS, TrainOptions, short_name
from meshwise.train.start import is_begun
from meshwise.train.summary import TrainSummary

EXAMPLES = """
\b
Examples:
  meshwise train
      A small GPT on the source files of Python's own standard library, on 8 virtual CPU
      devices. The plan is found, shown and run. Ctrl-C saves; the same command continues.
\b
  meshwise train --text ~/books --out runs/books
      Other text: a file, or all text files below a folder.
\b
  meshwise train --fresh --mesh 2x4 --method megatron:2x4
      A plan by name in place of the one that is found: 2 replicas of a model split over 4
      devices. Compare the closing summaries. A run can change its plan when it resumes.
\b
  meshwise train --fresh --model mini --batch 64 --microbatches 4
      64 sequences a step, 16 at a time: less memory, the same losses.
\b
  meshwise train --fresh --stages 2 --schedule 1f1b --microbatches 4 --trace step.json
      The model in two pipeline stages on half of the devices each, the batch in 4 parts; what
      each stage did in one step, for ui.perfetto.dev.
      A run that was begun on one mesh can go on in stages, and back: leave --fresh out.
\b
  meshwise train --fresh --hosts 2 --stages 2 --microbatches 4
      The same in two processes with half of the devices each, as on two hosts.
\b
  meshwise train --fresh --memory 20MiB --microbatches auto --dump-plan
      As many micro-batches as a plan within 20 MiB a device needs; the plan also as JSON.
\b
  meshwise train --step my_module:make --stages 2 --html plan.html
      A step of your own, with all of the above but --model. `make()` returns `(step, state,
      batch)`: `step(state, batch)` returns the new state and the loss, or {"loss": loss, ...};
      `state(key)` makes the first state, or `state` is its arrays; `batch(number)` returns the
      whole batch of step `number`, counted from 0: a resumed run goes on with the next one.
\b
  meshwise plan --step my_module:make --cluster "8 cpu" --out plan.json
  meshwise train --step my_module:make --plan plan.json
      Plan once, look at the plan, then run that plan.
\b
  meshwise calibrate --out profile.json && meshwise train --fresh --cluster profile.json
      Plan with the speed of this machine in place of built-in numbers.
\b
  meshwise train --fresh --steps 1 --dump-ilp ilp && meshwise solve ilp/001-intra-8.json.gz
      What the planner solved, as files in the form of the ASPLOS 2025 contest.
"""


def _option(*names: str, **settings: Any) -> Any:
    return click.option(*names, show_default=settings.get("default") is not None, **settings)


@click.command(
    cls=ArgumentsKept,
    epilog=EXAMPLES,
)
@click.pass_context
@click.option(
    "--step",
    metavar="MODULE:NAME",
    help="Train a step of your own, see the examples: a function of a module, or of a file as "
    "train.py:make. Default: a model on text.",
)
@_option(
    "--text",
    type=click.Path(exists=True, path_type=Path),
    help="File or folder to learn "
    "from, byte by byte. Default: Python's standard library (without its tests).",
)
@_option(
    "--model",
    type=click.Choice(TRAINED_MODELS),
    metavar="NAME",
    default="small",
    help=f"Size of the GPT ({', '.join(gpt_config.names)}), or a model by its whole name, as "
    "llama-tiny or experts-tiny; `meshwise plan --help` has them all.",
)
@_option("--seq", type=click.IntRange(2), default=128, help="Bytes in one sequence.")
@_option("--batch", type=click.IntRange(1), default=16, help="Sequences in one step.")
@_option("--steps", type=click.IntRange(1), default=400, help="Step at which the run ends.")
@_option("--lr", type=click.FloatRange(0, min_open=True), default=3e-3, help="Peak learning rate.")
@_option("--dropout", type=click.FloatRange(0, 1, max_open=True), default=0.0, help="Dropout rate.")
@_option(
    "--seed", type=click.IntRange(0), default=0, help="Seed of parameters, order of data, dropout."
)
@_option(
    "--devices",
    type=click.IntRange(0),
    default=8,
    help="Number of virtual CPU devices; 0 takes the accelerators that JAX finds.",
)
@_option(
    "--hosts",
    type=click.IntRange(1),
    default=1,
    help="Processes of this machine that train together, each with its share of --devices, as if "
    "they were so many hosts.",
)
@_option(
    "--max-restarts",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="With --hosts: when a process fails, start all again, at most N times; they resume from "
    "the last checkpoint.",
)
@click.option("--ray", is_flag=True, help="The hosts are those of Ray, which RAY_ADDRESS names.")
@_option(
    "--cluster",
    type=ClusterName(),
    metavar="FILE",
    help="How fast the devices are, for the planner: a profile of `meshwise calibrate`, or a TOML "
    "file. Default: built-in numbers.",
)
@_option(
    "--plan",
    "plan_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Run the plan in a file, of `meshwise plan --step ... --out FILE` or plan.json of another "
    "run, in place of a search. It holds for one step, one shape of its batch, and as many devices "
    "as it was made for.",
)
@_option(
    "--mesh",
    type=MeshShape(),
    help="Shape of the device mesh, as 2x4. Default: the planner chooses.",
)
@_option(
    "--method",
    type=MethodName(),
    default="auto",
    help="How the plan is found: auto, intra "
    "(one mesh), data, zero2, zero3, megatron:DxT (D replicas split T ways), heuristic.",
)
@_option(
    "--microbatches",
    type=IntOrAuto(),
    help="Parts of the batch that run one after the other. Default: 1 on one mesh, auto in a "
    "pipeline.",
)
@_option(
    "--stages",
    type=IntOrAuto(),
    help="Cut the model into so many pipeline stages, each on devices of its own; auto: as many "
    "as are fastest. Default: one mesh.",
)
@_option(
    "--schedule",
    type=click.Choice([*choices(), ALL]),
    metavar="NAME",
    help="Order of the micro-batches in a pipeline: "
    f"{', '.join(choices())}, or all for the fastest. Default: the fastest of all but gpipe.",
)
@_option(
    "--memory",
    type=ByteSize(),
    help="Limit of one device, as 512MiB. Default: what the device has; virtual CPU devices share "
    "the memory of this machine.",
)
@offload_option
@_option(
    "--eval-every",
    type=click.IntRange(1),
    default=50,
    help="Steps between looks at the held-out text.",
)
@_option("--save-every", type=click.IntRange(1), default=100, help="Steps between checkpoints.")
@_option(
    "--keep",
    type=click.IntRange(1),
    default=2,
    help="Checkpoints that stay. If the newest is damaged, the run resumes from the one before.",
)
@_option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the run: checkpoints; losses.csv with the loss of each step, and what else a "
    "step returns as a scalar; summary.json; plan.json. Default: runs/gpt, or runs/MODULE with "
    "--step.",
)
@click.option(
    "--resume/--fresh",
    default=True,
    show_default=True,
    help="Continue from the newest checkpoint in --out, or remove those there and start anew.",
)
@_option(
    "--trace",
    "trace_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Time the third step of this call mesh by mesh, and write it for Chrome or Perfetto: from "
    "the first instruction to the last, without what moves arguments and results. That call as a "
    "whole is slower: each mesh waits for each instruction. Only with --stages.",
)
@_option(
    "--html",
    "html_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A page about the plan. With --stages it also shows the third step of this call, measured "
    "as for --trace.",
)
@click.option("--dump-plan", is_flag=True, help="Print the plan as JSON before training.")
@_option(
    "--dump-ilp",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write every ILP of the planner to DIR, as files for `meshwise solve`.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the closing summary as JSON on standard output, all else on standard error.",
)
def train(  # The options above say what the arguments are.
    ctx: click.Context,
    *,
    devices: int,
    hosts: int,
    max_restarts: int,
    ray: bool,
    memory: int | None,
    out: Path | None,
    lr: float,
    resume: bool,
    dump_plan: bool,
    plan_file: Path | None,
    trace_file: Path | None,
    html_file: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Train a GPT or a Llama on bytes, or a step of your own, through a plan that Meshwise finds.

    Shows the plan, the loss, the loss on held-out files, and at the end what the plan predicted
    against what was measured, and a text that the model wrote.
    """
    files = {"--trace": trace_file, "--html": html_file}
    folder = out or _folder_of(settings["step"])
    if settings["step"] is not None:
        check_own(ctx)
    plan = None if plan_file is None else plan_from_file(plan_file)
    check_stages(settings, plan, has_trace=trace_file is not None)
    check_dropout(settings)
    for file in files.values():
        if file is not None:
            check_writable(file)
    start = name_of_start()
    options = TrainOptions(
        memory_bytes=memory,
        learning_rate=lr,
        fresh=not (resume or is_begun(folder, start)),
        start=start,
        out=folder,
        plan=plan,
        **settings,
    )
    options = replace(options, measure=any(files.values()) and options.has_stages)
    check_given_plan(options)
    if not is_in_job():
        check_hosts(hosts, max_restarts, ray=ray, as_json=as_json)
        if hosts > 1 or ray:
            sys.exit(_run_on_others(ctx.meta["arguments"], hosts, devices, max_restarts, ray=ray))
    # Must come before anything asks JAX for a device.
    if is_in_job():
        join_job()
    elif devices:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", devices)
    # Orbax logs the traceback of each save that fails; the view says it in a line.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    job = current_job()
    speaks = job is None or job.process == 0
    view = TrainView(
        use_stderr=as_json,
        dump_plan=dump_plan,
        trace_file=trace_file if speaks else None,
        html_file=html_file if speaks else None,
        is_silent=not speaks,
    )
    flag = StopFlag()
    summary = _trained(options, view, flag, job)
    if as_json and speaks:
        click.echo(summary.to_json())
    if view.unwritten:
        raise click.ClickException(f"{'; '.join(view.unwritten)}; the run itself is saved")
    if not summary.is_complete:
        sys.exit(flag.exit_code)


def _run_on_others(
    arguments: Sequence[str], hosts: int, devices: int, max_restarts: int, *, ray: bool
) -> int:
    """Run the same command in other processes, and return the exit code."""
    if ray:
        return run_on_ray(arguments, hosts, devices)
    return run_on_hosts(arguments, hosts, devices, max_restarts)


def _trained(
    options: TrainOptions, view: TrainView, flag: StopFlag, job: Job | None
) -> TrainSummary:
    """Run the training, and say in one line what ends it early."""
    follow = None if job is None else followed
    try:
        with (
            view,
            shown(view.note),
            plan_warnings_shown(view.on_plan_warning),
            signals_set(flag, view),
            told_to_all(job),
        ):
            return run_training(options, step_builder(options), view, flag.is_set, job, follow)
    except KeyboardInterrupt:
        view.note("stopped; what was saved stays")
        sys.exit(flag.exit_code)


def _folder_of(step: str | None) -> Path:
    """Return the folder of a run for which none is named: after the module or file of its step."""
    if step is None:
        return Path("runs", "gpt")
    return Path("runs", short_name(step).partition(":")[0])
