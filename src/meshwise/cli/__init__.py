"""The command `meshwise`: one file a subcommand, imported when it is called.

To add one, write `cli/<name>.py` with a click command of that name and list it in `COMMANDS`.
"""

from __future__ import annotations

import atexit
import gc
import importlib
from typing import Any

import click

from meshwise.cli.clock import process_start
from meshwise.cli.option_names import Command, with_options
from meshwise.errors import MeshwiseError
from meshwise.system.collector import collection_paused

# Subcommands in the order of the help, and what it says; each is `meshwise.cli.<name>.<name>`.
COMMANDS = {
    "train": "Train a GPT or a Llama on text, or a step of your own.",
    "plan": "Find the fastest plan for a step on a cluster.",
    "verify": "Compile a plan's programs for its devices.",
    "explain": "Say what a plan file means.",
    "diff": "Say what differs between two plan files.",
    "simulate": "Simulate a step of a plan, also with changes.",
    "calibrate": "Measure devices, or ask a target's compiler.",
    "solve": "Solve an assignment problem from a file.",
    "launch": "Run a script in many processes on this machine.",
    "doctor": "Say what this installation sees, and what is wrong.",
}

# Those that have options for arguments of `mw.parallelize`.
WITH_OPTIONS: tuple[Command, ...] = ("train", "plan")

# What `pip install 'meshwise[train]'` brings, by the name under which it is imported.
TRAIN_EXTRA = ("flax", "optax", "orbax")


class _LazyGroup(click.Group):
    """Imports a subcommand only when it is asked for, so that `--help` does not load JAX.

    What a subcommand is refused with ends it with the message alone.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        """Run the command of this process; its clock is the context's object."""
        if not args and not kwargs:
            kwargs["obj"] = process_start()
            # At exit Python's collector would look for garbage in all that planning made: seconds.
            atexit.register(gc.freeze)
        return super().__call__(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> object:
        """Run the subcommand."""
        try:
            return super().invoke(ctx)
        except MeshwiseError as error:
            commands: dict[str | None, Command] = {name: name for name in WITH_OPTIONS}
            command = commands.get(ctx.invoked_subcommand)
            text = str(error) if command is None else with_options(str(error), command)
            raise click.ClickException(text) from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, in the order of `COMMANDS`."""
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands; none is imported, as one may need what is not installed."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a name, or None."""
        if cmd_name not in COMMANDS:
            return None
        try:
            with collection_paused():
                module = importlib.import_module(f"{__name__}.{cmd_name}")
        except ModuleNotFoundError as error:
            if error.name not in TRAIN_EXTRA:
                raise
            raise click.ClickException(
                f"`meshwise {cmd_name}` needs {error.name}: pip install 'meshwise[train]'"
            ) from error
        command: click.Command = getattr(module, cmd_name)
        return command


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="`meshwise COMMAND --help` shows the options of a command, with examples.",
)
@click.version_option(package_name="meshwise")
def main() -> None:
    """Finds a parallel plan for a JAX training step and runs it."""
