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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from meshwise.errors import ProgramError
from meshwise.system.child_process import ChildProcess
from meshwise.targets.catalog import CompileTarget
from meshwise.targets.child import SCRIPT, CompileAnswer, CompileRequest
from meshwise.targets.packages import InstalledCompiler, installed_compiler

# Of all answers so many are kept, those that were read last.
_MOST_KEPT = 2_000


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
        num_processes: Compilations at a time; by default one a core.

    Returns:
        The answers, in the order of the programs.

    Raises:
        ClusterError: the compiler is not installed, or has no such devices.
        ProgramError: the compiler refuses a program, or its process ended.
    """
    compiler = installed_compiler(target.platform)
    kept = AnswerFolder(folder or _default_folder())
    requests = [_request(target, compiler, program) for program in programs]
    keys = [
        _key(program.digest, request, compiler)
        for program, request in zip(programs, requests, strict=True)
    ]
    answers = {key: answer for key in dict.fromkeys(keys) if (answer := kept.read(key)) is not None}
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    first = {key: n for n, key in reversed(list(enumerate(keys)))}
    for n in sorted(n for key, n in first.items() if key not in answers):
        todo.put(n)
    tell = listener or _tell_nobody
    for key in answers:
        tell(programs[first[key]].name, answers[key])
    failures: list[Exception] = []

    def work() -> None:
        try:
            with ChildProcess(SCRIPT) as child:
                children.append(child)
                while not failures:
                    try:
                        n = todo.get_nowait()
                    except queue.Empty:
                        return
                    answer = _answered(child, requests[n], programs[n].name, target, compiler)
                    answers[keys[n]] = answer
                    kept.write(keys[n], answer)
                    tell(programs[n].name, answer)
        except Exception as error:  # The caller raises it.
            failures.append(error)

    children: list[ChildProcess] = []
    number = min(todo.qsize(), num_processes or os.cpu_count() or 1)
    threads = [threading.Thread(target=work, daemon=True) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(timeout=0.2)
    finally:
        # Ctrl-C: what nobody waits for is ended.
        for child in children:
            child.kill()
    if failures:
        raise failures[0]
    return [answers[key] for key in keys]


def _tell_nobody(name: str, answer: CompileAnswer) -> None:
    del name, answer


def _request(
    target: CompileTarget, compiler: InstalledCompiler, program: TargetProgram
) -> CompileRequest:
    return CompileRequest(
        module=program.module,
        num_devices=program.num_devices,
        options=dict(program.options),
        platform=target.platform,
        plugin=compiler.path,
        topology=target.topology(program.num_devices),
        device_text=target.gpu.text() if target.gpu is not None else "",
    )


def _answered(
    child: ChildProcess,
    request: CompileRequest,
    name: str,
    target: CompileTarget,
    compiler: InstalledCompiler,
) -> CompileAnswer:
    try:
        child.send(request)
        answer: CompileAnswer = child.receive()
    except (EOFError, OSError) as error:
        raise ProgramError(
            f"the process of {compiler.name} ended while it compiled {name} for {target.name}; "
            "the compiler may not take this device or this program"
        ) from error
    if answer.error:
        raise ProgramError(
            f"{compiler.name} does not compile {name} for {target.name}: {answer.error}"
        )
    return answer


def _key(digest: str, request: CompileRequest, compiler: InstalledCompiler) -> str:
    rest = (
        *(digest, request.num_devices, sorted(request.options.items()), request.topology),
        *(request.device_text, compiler.name),
    )
    return hashlib.sha256(repr(rest).encode()).hexdigest()[:32]


def _default_folder() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return home / "meshwise" / "targets"


class AnswerFolder:
    """Answers of compilers on disk; what cannot be read or written is as if it were not there."""

    def __init__(self, folder: Path) -> None:
        """Use a folder, which is made when the first answer is written."""
        self.folder = folder

    def read(self, key: str) -> CompileAnswer | None:
        """Return an answer, or None."""
        path = self._path(key)
        try:
            fields = json.loads(gzip.decompress(path.read_bytes()))
            os.utime(path)
            return CompileAnswer(**fields)
        except (OSError, EOFError, ValueError, TypeError, zlib.error):
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
