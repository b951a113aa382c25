"""Runs a script in a process of a job: `python -m meshwise.hosts.worker SCRIPT ...` or `-m MODULE`.

The process leads its process group. Before anything else it starts the guard, which kills the
group when the launcher closes the lifeline or ends (`host_process`). JAX learns of the job when the
script imports it, so that the script can still set JAX's environment variables.
"""

from __future__ import annotations

import os
import signal
import sys
from io import TextIOWrapper
from typing import cast

from meshwise.hosts.after_import import after_import

_OF_OTHERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main(arguments: list[str]) -> None:
    """Run what the arguments name, as `python` would.

    Args:
        arguments: A script or `-m` and a module, and their arguments.
    """
    # The name that `host_process` gives it; that module is not for the guard's memory.
    lifeline = os.environ.pop("MESHWISE_LIFELINE", None)
    if lifeline is not None:
        _start_guard(int(lifeline))
    # Into a pipe Python writes blocks; -u would write parts of lines.
    cast(TextIOWrapper, sys.stdout).reconfigure(line_buffering=True)
    after_import("jax", _announce_job)
    try:
        _run(arguments)
    except SystemExit as error:
        # Other processes would wait for this one; without JAX there are none.
        heartbeat = sys.modules.get("meshwise.runtime.job.heartbeat")
        if heartbeat is not None:
            heartbeat.tell_exit(error.code)
        raise


def _run(arguments: list[str]) -> None:
    import runpy

    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.realpath(arguments[0])))
        runpy.run_path(arguments[0], run_name="__main__")


def _announce_job() -> None:
    from meshwise.hosts.detection import announce_job

    announce_job()


def _start_guard(lifeline: int) -> None:
    """Start the guard of this group; it is no child of this process, so that nobody waits for it.

    Args:
        lifeline: The reading end of the pipe whose other end the launcher holds.
    """
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            # The signals of the group are for the others.
            for number in _OF_OTHERS:
                signal.signal(number, signal.SIG_IGN)
            # Nobody writes: this returns when the other end is closed.
            os.read(lifeline, 1)
            os.killpg(0, signal.SIGKILL)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(lifeline)


if __name__ == "__main__":
    main(sys.argv[1:])
