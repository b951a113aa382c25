"""`python -m evaluation faults`: processes die while they train, and training goes on."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from evaluation.faults.cases import NUM_STEPS, Case, drawn_cases, every_case
from evaluation.faults.outcome import Outcome, run_with_faults
from evaluation.machine import this_machine
from meshwise.cli.outputs import check_writable
from meshwise.system.atomic_file import write_atomically

EXAMPLES = """
\b
Examples:
  python -m evaluation faults
      A kill at every instruction of a step, and beside it: some ninety jobs.
\b
  python -m evaluation faults --drawn 50 --seed 1
      Fifty random faults, ten a job.
"""


@click.command("faults", epilog=EXAMPLES)
@click.option(
    "--drawn", type=click.IntRange(1), help="So many random faults in place of every one of a step."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Which are drawn.")
@click.option("--every", type=click.IntRange(1), default=1, help="Only every so many-th case.")
@click.option(
    "--page",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("bench-out/faults.md"),
    show_default=True,
    help="File for the table.",
)
def faults(drawn: int | None, seed: int, every: int, file: Path) -> None:
    """Kill, stop and slow processes of jobs of two processes, and compare what they compute.

    The jobs run under `meshwise launch --max-restarts`. The losses of every one must be those of a
    job without faults, bit for bit.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    check_writable(file)
    machine = this_machine()
    with tempfile.TemporaryDirectory() as folder:
        wanted = {
            stages: run_with_faults(Path(folder, f"whole{stages}"), stages, steps, ())
            for stages, steps in ((2, NUM_STEPS), (0, NUM_STEPS))
        }
        if drawn is None:
            cases = every_case(wanted[2].seen)[::every]
        else:
            cases = drawn_cases(drawn, seed, wanted[2].seen)
            longest = max(len(case.faults) for case in cases)
            wanted = {
                stages: run_with_faults(
                    Path(folder, f"long{stages}"), stages, _num_steps(longest), ()
                )
                for stages in (2, 0)
            }
        results: list[tuple[Case, Outcome, list[str]]] = []
        for number, case in enumerate(cases):
            steps = NUM_STEPS if drawn is None else _num_steps(len(case.faults))
            outcome = run_with_faults(Path(folder, str(number)), case.stages, steps, case.faults)
            wrong = _wrong(outcome, wanted[case.stages], steps)
            results.append((case, outcome, wrong))
            told = " ".join(fault.text() for fault in case.faults)
            click.echo(f"{number + 1}/{len(cases)} {case.kind} {told}: {wrong or 'survived'}")
            if wrong:
                click.echo(outcome.text)
    options = f"--every {every}" if drawn is None else f"--drawn {drawn} --seed {seed}"
    lines = [
        "# Faults",
        "",
        f"{machine}.",
        f"`python -m evaluation faults {options} --page {file}` writes this page.",
        "",
        "Two processes of this machine with a device each train a small net with dropout under "
        "`meshwise launch --max-restarts`, in two stages or on one mesh, with a checkpoint every "
        "two steps. A job survives if all its steps have the losses of a job without faults, bit "
        "for bit, and no process is left.",
        "",
        *_table(results),
        "",
    ]
    write_atomically(file, "\n".join(lines))
    click.echo("\n".join(lines))
    if any(wrong for _, _, wrong in results):
        raise click.ClickException("a job did not survive")


def _num_steps(num_faults: int) -> int:
    # Each start does five steps before its fault at most.
    return NUM_STEPS + 5 * num_faults


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
    if outcome.leftovers:
        found.append(f"processes {outcome.leftovers} are left")
    return found


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
