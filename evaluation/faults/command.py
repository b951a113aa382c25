"""`python -m evaluation faults`: processes die while they train, and training goes on."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from evaluation.faults.cases import NUM_STEPS, Case, drawn_cases, every_case
from evaluation.faults.network import HEAD, HostOutcome, host_outcomes
from evaluation.faults.outcome import (
    DELAY_S,
    LOSS,
    Outcome,
    on_this_machine,
    on_two_hosts,
    run_with_faults,
)
from evaluation.hosts.iproute import TestbedError
from evaluation.hosts.obstacle import obstacle
from evaluation.machine import this_machine
from meshwise.cli.outputs import check_writable
from meshwise.system.atomic_file import write_atomically
from meshwise.system.exit_codes import START_AGAIN
from meshwise.units import MIB

EXAMPLES = """
\b
Examples:
  python -m evaluation faults
      A kill at every instruction of a step, and beside it: some ninety jobs.
\b
  python -m evaluation faults --drawn 50 --seed 1
      Fifty random faults, ten a job.
\b
  python -m evaluation faults --hosts
      Kill at each instruction, on two hosts of this machine whose links lose and delay packets.
\b
  python -m evaluation faults --links
      Cut the link between two hosts of this machine, kill and stop a process.
"""

# What the launcher may hold more after ten starts than after one.
_MORE_BYTES = 2 * MIB


@click.command("faults", epilog=EXAMPLES)
@click.option(
    "--drawn", type=click.IntRange(1), help="So many random faults in place of every one of a step."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Which are drawn.")
@click.option("--every", type=click.IntRange(1), default=1, help="Only every so many-th case.")
@click.option(
    "--hosts",
    is_flag=True,
    help="On two hosts of this machine whose links lose and delay packets; needs root.",
)
@click.option(
    "--links",
    is_flag=True,
    help="Cut the link of two hosts of this machine that nobody starts again; needs root.",
)
@click.option(
    "--page",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("bench-out/faults.md"),
    show_default=True,
    help="File for the table.",
)
def faults(drawn: int | None, seed: int, every: int, hosts: bool, links: bool, file: Path) -> None:
    """Kill, stop and slow processes of jobs of two processes, and compare what they compute.

    The jobs run under `meshwise launch --max-restarts`, or with --hosts on two hosts, under a loop
    that starts them again as the queue of a cluster does. The losses of every job must be those of
    a job without faults, bit for bit.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    check_writable(file)
    if (hosts or links) and (reason := obstacle()) is not None:
        raise click.ClickException(reason)
    if links:
        options, page = "--links", _unwatched()
    else:
        options = f"--every {every}" if drawn is None else f"--drawn {drawn} --seed {seed}"
        options += " --hosts" if hosts else ""
        page = _restarted(every=every, drawn=drawn, seed=seed, hosts=hosts)
    title, about, table, is_well = page
    lines = [
        f"# {title}",
        "",
        f"{this_machine()}.",
        f"`python -m evaluation faults {options} --page {file}` writes this page.",
        "",
        about,
        "",
        *table,
        "",
    ]
    write_atomically(file, "\n".join(lines))
    click.echo("\n".join(lines))
    if not is_well:
        raise click.ClickException("a job did not survive")


# The title, what is measured, the table, and whether all is well.
_Page = tuple[str, str, list[str], bool]


def _unwatched() -> _Page:
    """Disturb two hosts that nobody watches."""
    outcomes: list[HostOutcome] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for outcome in host_outcomes(Path(folder)):
                outcomes.append(outcome)
                click.echo(outcome.row())
    except TestbedError as error:
        raise click.ClickException(str(error)) from error
    whole = outcomes[0].losses
    is_well = all(
        loss == whole[step] for outcome in outcomes for step, loss in outcome.losses.items()
    )
    about = (
        "Two hosts are network namespaces with links of 100 Mbit/s, and each has a process of a "
        "pipeline of two stages, started by itself. Losses up to the end are those of the job to "
        f"which nothing happens, bit for bit: {'yes' if is_well else 'NO'}. Exit code "
        f"{START_AGAIN} says that the job can be started again."
    )
    return "Faults of links", about, [*HEAD, *(each.row() for each in outcomes)], is_well


def _restarted(*, every: int, drawn: int | None, seed: int, hosts: bool) -> _Page:
    """Disturb jobs that are started again."""
    where = (
        f"on two hosts of this machine (network namespaces), whose links lose {LOSS:.1%} of the "
        f"packets and delay each way by {DELAY_S * 1e3:g} ms; a loop starts them again, as Slurm's "
        "queue does,"
        if hosts
        else "of this machine under `meshwise launch --max-restarts`"
    )
    about = (
        f"Two processes with a device each train a small net with dropout {where} in two stages "
        "or on one mesh, with a checkpoint every two steps. A job survives if all its steps have "
        "the losses of a job without faults, bit for bit, and no process is left."
    )
    starter = on_two_hosts if hosts else on_this_machine
    with tempfile.TemporaryDirectory() as folder:
        whole = _whole(Path(folder, "whole"), NUM_STEPS)
        if drawn is None:
            cases = every_case(whole[2].seen)[::every]
        else:
            cases = drawn_cases(drawn, seed, whole[2].seen, hosts=hosts)
        steps = NUM_STEPS
        if drawn is not None:
            # Each start does five steps before its fault at most.
            steps += 5 * max(len(case.faults) for case in cases)
            whole = _whole(Path(folder, "long"), steps)
        results: list[tuple[Case, Outcome, list[str]]] = []
        for number, case in enumerate(cases):
            own = Path(folder, str(number))
            outcome = run_with_faults(own, case.stages, steps, case.faults, starter=starter)
            wrong = _wrong(outcome, whole[case.stages], steps)
            results.append((case, outcome, wrong))
            told = " ".join(fault.text() for fault in case.faults)
            click.echo(f"{number + 1}/{len(cases)} {case.kind} {told}: {wrong or 'survived'}")
            if wrong:
                click.echo(outcome.text)
    title = "Faults of two hosts" if hosts else "Faults"
    return title, about, _table(results), not any(wrong for _, _, wrong in results)


def _whole(folder: Path, num_steps: int) -> dict[int, Outcome]:
    """Run jobs without faults, of two stages and of one mesh."""
    return {
        stages: run_with_faults(folder / str(stages), stages, num_steps, ()) for stages in (2, 0)
    }


def _wrong(outcome: Outcome, wanted: Outcome, num_steps: int) -> list[str]:
    """Return what is wrong with an outcome."""
    found: list[str] = []
    if outcome.code:
        found.append(f"it ended with {outcome.code}")
    if sorted(outcome.steps) != list(range(1, num_steps + 1)):
        found.append(f"it did steps {sorted(outcome.steps)}")
    for number, losses in outcome.steps.items():
        if losses != wanted.steps.get(number):
            found.append(f"step {number} has losses {losses}, not {wanted.steps.get(number)}")
    if _grew([size for size, _ in outcome.held], _MORE_BYTES):
        found.append(f"the launcher grew: {outcome.held}")
    if _grew([files for _, files in outcome.held], 0):
        found.append(f"the launcher keeps files open: {outcome.held}")
    if outcome.leftovers:
        found.append(f"processes {outcome.leftovers} are left")
    return found


def _grew(values: Sequence[int], more: int) -> bool:
    """Return whether all values of the second half are above those of the first one.

    Some are read when the next start has begun, which opens files.
    """
    half = len(values) // 2
    return half > 0 and min(values[half:]) > max(values[:half]) + more


def _table(results: Sequence[tuple[Case, Outcome, list[str]]]) -> list[str]:
    kinds: dict[tuple[str, str], list[tuple[Outcome, list[str]]]] = {}
    for case, outcome, wrong in results:
        plan = "2 stages" if case.stages else "one mesh"
        kinds.setdefault((case.kind, plan), []).append((outcome, wrong))
    lines = [
        "| fault | plan | jobs | faults | survived | said after | all ended after | next step "
        "after | steps run again |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (kind, plan), some in kinds.items():
        outcomes = [outcome for outcome, _ in some]
        cells = [
            kind,
            plan,
            str(len(some)),
            str(sum(len(outcome.detect_s) for outcome in outcomes)),
            str(sum(not wrong for _, wrong in some)),
            _seconds([s for outcome in outcomes for s in outcome.detect_s]),
            _seconds([s for outcome in outcomes for s in outcome.end_s]),
            _seconds([s for outcome in outcomes for s in outcome.next_step_s]),
            f"at most {max(outcome.num_repeated for outcome in outcomes)}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _seconds(times: Sequence[float | None]) -> str:
    """Return the median and the greatest of some times."""
    known = [time for time in times if time is not None]
    return f"{statistics.median(known):.1f} (at most {max(known):.1f}) s" if known else "-"
