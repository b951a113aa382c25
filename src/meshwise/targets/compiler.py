"""Compiles programs for a target in child processes, several at once, and keeps the answers.

Answers are kept in the user's cache folder by program, target and compiler, so that a program is
compiled once.  A compilation cannot be interrupted: Ctrl-C ends its process.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import queue
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, cast

from meshwise.errors import ProgramError
from meshwise.runtime.device_memory import CompiledBytes
from meshwise.system.child_process import ChildProcess
from meshwise.system.cores import usable_cores
from meshwise.system.text_file import text_of
from meshwise.system.user_cache import user_cache
from meshwise.targets.child import SCRIPT, CompileAnswer, CompileRequest
from meshwise.targets.compile_target import CompileTarget
from meshwise.targets.packages import InstalledCompiler, installed_compiler
from meshwise.units import GIB

# Of all answers so many are kept, those that were read last.
_MOST_KEPT = 2_000
# Of the text of an answer.
_MOST_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetProgram:
    """A program that is lowered for a target.

    Attributes:
        name: Name for messages, as `forward of layer 3`.
        module: StableHLO as MLIR bytecode.
        digest: Digest of the module without source lines.
        num_devices: Devices of its mesh.
        options: Compile options by name.
    """

    name: str
    module: bytes
    digest: str
    num_devices: int
    options: Mapping[str, str | bool]


# Bytes of memory that a compilation of one program may take.  Assumption.
_BYTES_A_PROCESS = 2 * GIB

# Is told the name of each program whose answer is there, and the answer.
Listener = Callable[[str, CompileAnswer], None]


def compile_programs(
    target: CompileTarget,
    programs: Sequence[TargetProgram],
    *,
    listener: Listener | None = None,
    folder: Path | None = None,
    num_processes: int | None = None,
) -> list[CompileAnswer]:
    """Compile programs for a target.

    Args:
        target: The kind of devices.
        programs: The programs; equal ones are compiled once.
        listener: Is told of each answer.
        folder: Where answers are kept; by default the user's cache folder.
        num_processes: Compilations at a time; by default one a core, as far as memory goes.

    Returns:
        The answers, in the order of the programs.

    Raises:
        ClusterError: the compiler is not installed.
        ProgramError: the compiler refuses a program, or its process ended.
    """
    compiler = installed_compiler(target.platform)
    kept = AnswerFolder(folder or user_cache() / "targets")
    jobs = [_job(target, compiler, program) for program in programs]
    answers: dict[str, CompileAnswer] = {}
    missing: list[_Job] = []

    def done(job: _Job, answer: CompileAnswer) -> None:
        answers[job.key] = answer
        (listener or _tell_nobody)(job.name, answer)

    for job in {job.key: job for job in reversed(jobs)}.values():
        answer = kept.read(job.key)
        if answer is None:
            missing.append(job)
        else:
            done(job, answer)
    for job, answer in _compiled(missing[::-1], num_processes or _num_processes()):
        if isinstance(answer, str):
            raise ProgramError(
                f"{compiler.name} does not compile {job.name} for {target.name}: {answer}"
            )
        kept.write(job.key, answer)
        done(job, answer)
    return [answers[job.key] for job in jobs]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A program that is to be compiled, and the name of its answer on disk."""

    name: str
    key: str
    request: CompileRequest


def _compiled(jobs: Sequence[_Job], most: int) -> Iterator[tuple[_Job, CompileAnswer | str]]:
    """Compile in child processes, and yield answers as they come; what is not read is ended."""
    todo: queue.SimpleQueue[_Job] = queue.SimpleQueue()
    made: queue.SimpleQueue[tuple[_Job, CompileAnswer | str]] = queue.SimpleQueue()
    for job in jobs:
        todo.put(job)
    with ExitStack() as stack:
        for _ in range(min(len(jobs), most)):
            child = stack.enter_context(ChildProcess(SCRIPT))
            threading.Thread(target=_work, args=(child, todo, made), daemon=True).start()
        for _ in jobs:
            while True:
                # In short waits, so that Ctrl-C is noticed.
                with suppress(queue.Empty):
                    yield made.get(timeout=0.2)
                    break


def _work(
    child: ChildProcess,
    todo: queue.SimpleQueue[_Job],
    made: queue.SimpleQueue[tuple[_Job, CompileAnswer | str]],
) -> None:
    """Compile one program after the other in a child process; an end of it is an answer too."""
    while True:
        try:
            job = todo.get_nowait()
        except queue.Empty:
            return
        try:
            child.send(job.request)
            made.put((job, child.receive()))
        except Exception as error:  # Whatever it is, somebody waits for an answer.
            made.put((job, _ended(child, error)))


def _ended(child: ChildProcess, error: Exception) -> str:
    text = f"the compiler's process ended ({type(error).__name__})"
    with suppress(ValueError, OSError):  # Where nobody waits any more, what it printed is closed.
        if printed := child.last_printed():
            text = f"{text}; it printed last:\n{printed}"
    return text


def _tell_nobody(name: str, answer: CompileAnswer) -> None:
    del name, answer


def _job(target: CompileTarget, compiler: InstalledCompiler, program: TargetProgram) -> _Job:
    request = CompileRequest(
        module=program.module,
        num_devices=program.num_devices,
        options=dict(program.options),
        platform=target.platform,
        plugin=compiler.path,
        slice=target.slice(program.num_devices),
    )
    parts = (
        *(program.digest, request.num_devices, sorted(request.options.items())),
        *(repr(request.slice), compiler.name),
        # What compilers read from their environment.
        *(os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")),
    )
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
    return _Job(name=program.name, key=key, request=request)


def _num_processes() -> int:
    free_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return max(min(usable_cores(), free_bytes // _BYTES_A_PROCESS), 1)


class AnswerFolder:
    """Answers of compilers on disk; what cannot be read or written is as if it were not there."""

    def __init__(self, folder: Path) -> None:
        """Use a folder, which is made when the first answer is written."""
        self.folder = folder

    def read(self, key: str) -> CompileAnswer | None:
        """Return an answer, or None."""
        path = self._path(key)
        try:
            with gzip.open(path) as file:
                fields = json.loads(text_of(cast(IO[bytes], file), _MOST_BYTES))
            os.utime(path)
            answer = CompileAnswer(**fields | {"memory": CompiledBytes(**fields["memory"])})
            return answer if _is_whole(answer) else None
        # Files of another form too.
        except (
            OSError, EOFError, ValueError, TypeError, KeyError, RecursionError, zlib.error,
        ):  # fmt: skip
            return None

    def write(self, key: str, answer: CompileAnswer) -> None:
        """Keep an answer, and forget those that were not read for longest."""
        data = gzip.compress(json.dumps(asdict(answer)).encode(), mtime=0)
        path = self._path(key)
        scratch = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            scratch.write_bytes(data)
            os.replace(scratch, path)
            known = sorted(self.folder.glob("*.json.gz"), key=lambda p: p.stat().st_mtime)
            for old in known[:-_MOST_KEPT]:
                old.unlink(missing_ok=True)
        except OSError:
            with suppress(OSError):
                scratch.unlink()

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json.gz"


def _is_whole(answer: CompileAnswer) -> bool:
    """Return whether the fields of an answer from a file are of their kinds."""
    sizes = asdict(answer.memory).values()
    return (
        isinstance(cast(object, answer.text), str)
        and type(answer.seconds) in (int, float)
        and 0 <= answer.seconds < float("inf")
        and all(type(size) is int and 0 <= size < 2**63 for size in sizes)
    )
