"""`meshwise solve`: an assignment problem of the ASPLOS 2025 contest's form."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click

from meshwise.assignment.answer import Answer, Progress
from meshwise.assignment.files.json_stream import OutOfTimeError
from meshwise.assignment.files.reader import read_instance
from meshwise.assignment.instance_solver import solve_instance
from meshwise.assignment.kernel_set import KERNELS
from meshwise.assignment.options import Watch
from meshwise.errors import SolverError
from meshwise.kernels.background import compiling
from meshwise.units import counted

# Kept back for writing the answer and ending the process: at most so much, and a part of the limit.
_RESERVE_S = 0.5
_LEAST_RESERVE_S = 0.1
_RESERVE_SHARE = 0.05
_SHOW_EVERY_S = 1.0


@click.command(
    epilog="Example: meshwise solve problem.json.gz --time-limit 60 > choices.txt\n\n"
    "Ctrl-C ends the search with the best solution so far.",
)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Wall time in seconds from the start of the process.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N")
@click.option("--json", "as_json", is_flag=True, help="Cost, bound, gap and peak too, as JSON.")
def solve(file: Path, time_limit: float, seed: int, as_json: bool) -> None:
    """Choose one strategy for each node of the problem in FILE, as cheaply as memory allows.

    FILE is JSON, plain or gzip: nodes with costs and usages of each strategy and the interval in
    which they use memory, edges with a cost for each pair of strategies, and a limit on usage.
    Progress goes to the standard error; the last line on the standard output is the list of
    strategies, or [] if no solution was found.
    """
    if not math.isfinite(time_limit):
        raise click.BadParameter(f"{time_limit} is no number of seconds", param_hint="--time-limit")
    # Of the process where this is its command, and not called by another program.
    start: float = click.get_current_context().obj or time.monotonic()
    reserve_s = min(_RESERVE_S, _LEAST_RESERVE_S + _RESERVE_SHARE * time_limit)
    deadline = start + time_limit - reserve_s
    view = _View()
    answer = Answer.unknown(seed)
    with _interrupts() as interrupt:
        try:
            with compiling(KERNELS, view.line) as wait_for_kernels:
                instance = read_instance(file, deadline=deadline)
                interrupt.is_raised = False
                answer = solve_instance(
                    instance,
                    time_limit_s=max(deadline - time.monotonic(), 0.01),
                    seed=seed,
                    watch=Watch(
                        report=view.progress,
                        interrupt=interrupt.event,
                        wait_for_kernels=wait_for_kernels,
                    ),
                )
        except OutOfTimeError:
            view.line("time was over while the file was read")
        except SolverError as error:
            raise click.ClickException(str(error)) from error
        except KeyboardInterrupt:
            # While the file was read.
            pass
        view.end(answer)
        if as_json:
            click.echo(json.dumps(_document(answer)))
        else:
            click.echo(json.dumps(list(answer.choice or ())))


@dataclass(slots=True)
class _Interrupt:
    """What Ctrl-C does: an event for the solver, an error while the file is read.

    An error may be lost where Python calls back from elsewhere, and must not spoil the output.
    """

    event: threading.Event = field(default_factory=threading.Event)
    is_raised: bool = True

    def __call__(self, number: int, _: object) -> None:
        self.event.set()
        if self.is_raised:
            self.is_raised = False
            raise KeyboardInterrupt


@contextlib.contextmanager
def _interrupts() -> Iterator[_Interrupt]:
    interrupt = _Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


def _document(answer: Answer) -> dict[str, object]:
    return {
        "choice": list(answer.choice or ()),
        "cost": answer.cost,
        "bound": answer.bound,
        "gap": answer.gap if answer.cost is not None else None,
        "peak": answer.peak,
        "status": answer.status,
        "seconds": round(answer.seconds, 3),
        "seed": answer.seed,
    }


class _View:
    """Lines on the standard error, at most one a second."""

    def __init__(self) -> None:
        self.shown = -_SHOW_EVERY_S

    def progress(self, now: Progress) -> None:
        """One line of what is known."""
        if not now.has_kernels:
            self.line(f"the solver is not compiled yet: a first solution costs {now.cost}")
            return
        if now.seconds - self.shown < _SHOW_EVERY_S:
            return
        self.shown = now.seconds
        gap = f"{(now.cost - now.bound) / now.cost:.3%}" if now.cost else "-"
        cost = "none yet" if now.cost is None else str(now.cost)
        self.line(
            f"{now.seconds:7.1f} s  cost {cost}  bound {now.bound}  gap {gap}  "
            f"{counted(now.num_nodes, 'node')} left"
        )

    def end(self, answer: Answer) -> None:
        """The result."""
        if answer.cost is None:
            self.line(f"{answer.status}: no solution after {answer.seconds:.1f} s")
            return
        self.line(
            f"{answer.status}: cost {answer.cost}, bound {answer.bound}, gap {answer.gap:.4%}, "
            f"peak {answer.peak} bytes, {answer.seconds:.1f} s"
        )

    def line(self, text: str) -> None:
        """Any line."""
        click.echo(text, file=sys.stderr)
