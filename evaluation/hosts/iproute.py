"""The commands `ip` and `tc` of iproute2, and the error that they end in."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

# One command takes milliseconds; deleting a namespace may wait for the kernel.
_TIMEOUT_S = 30.0


class TestbedError(RuntimeError):
    """A testbed could not be built, used or removed."""

    # pytest takes classes named Test... for tests.
    __test__ = False


def iproute(*arguments: str) -> str:
    """Run one command of iproute2.

    Args:
        arguments: The command with its arguments, as ("ip", "netns", "list").

    Returns:
        What it printed.

    Raises:
        TestbedError: the command failed or is not there.
    """
    return _run(arguments)


def batch(program: str, namespace: str, commands: Sequence[str]) -> None:
    """Run several commands of `ip` or `tc` in a namespace, up to the first that fails.

    Args:
        program: "ip" or "tc".
        namespace: The name of the network namespace.
        commands: Each without the name of the program, as "link set lo up".

    Raises:
        TestbedError: a command failed.
    """
    _run((program, "-netns", namespace, "-batch", "-"), "\n".join(commands))


def _run(arguments: Sequence[str], text: str = "") -> str:
    command = " ".join(arguments) + (f" with the lines\n{text}\n" if text else "")
    try:
        done = subprocess.run(
            arguments,
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
            # Ctrl-C is for the process that asks: a removal goes on.
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TestbedError(f"`{command}` did not run: {error}") from error
    if done.returncode != 0:
        raise TestbedError(f"`{command}` failed: {done.stderr.strip()}")
    return done.stdout
