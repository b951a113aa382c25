"""Answers of compilers: kept on disk, asked once, refused with a remedy."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import pytest

from meshwise.errors import ClusterError, ProgramError
from meshwise.runtime.device_memory import CompiledBytes
from meshwise.targets import compiler, packages
from meshwise.targets.catalog import compile_target
from meshwise.targets.child import CompileAnswer, refused_memory
from meshwise.targets.compiler import AnswerFolder, TargetProgram, compile_programs
from meshwise.targets.packages import CompilerPackage, InstalledCompiler, installed_compiler
from meshwise.units import GIB

JAXLIB = version("jaxlib")
ANSWER = CompileAnswer(
    memory=CompiledBytes(argument_bytes=5, output_bytes=3, alias_bytes=2, temporary_bytes=7),
    text="HLO",
    seconds=1.5,
)


def test_an_answer_on_disk_reads_back(tmp_path: Path) -> None:
    folder = AnswerFolder(tmp_path / "answers")
    assert folder.read("a") is None
    folder.write("a", ANSWER)
    assert folder.read("a") == ANSWER
    assert ANSWER.memory.peak_bytes == 13
    assert [path.name for path in (tmp_path / "answers").iterdir()] == ["a.json.gz"]


# As they were kept before bytes stood in an object of their own.
OLD = {
    **{"argument_bytes": 5, "output_bytes": 3, "alias_bytes": 2, "temporary_bytes": 7},
    **{"text": "HLO", "seconds": 1.5, "error": ""},
}
OTHER_FORMS = (OLD, OLD | {"memory": {}}, {"memory": 5, "text": "", "seconds": 1.0}, [], 5, None)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"torn",
        None,
        # Without the time of day, which would be in the names of these cases.
        *(gzip.compress(json.dumps(form).encode(), mtime=0) for form in OTHER_FORMS),
    ],
)
def test_what_cannot_be_read_is_as_if_it_were_not_there(
    tmp_path: Path, content: bytes | None
) -> None:
    folder = AnswerFolder(tmp_path)
    folder.write("a", ANSWER)
    path = tmp_path / "a.json.gz"
    path.write_bytes(path.read_bytes()[:-4] if content is None else content)
    assert folder.read("a") is None


def test_a_folder_that_cannot_be_made_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = AnswerFolder(tmp_path / "file" / "answers")
    folder.write("a", ANSWER)
    assert folder.read("a") is None


def test_a_compiler_that_is_missing_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = CompilerPackage(name="no-such-compiler", file="x.so", extra="target-gpu")
    monkeypatch.setattr(packages, "PACKAGES", {"cuda": (missing,)})
    with pytest.raises(
        ClusterError,
        match=r"no-such-compiler, is not installed: `pip install \"no-such-compiler==[0-9.]+\"`, "
        r"or `pip install \"meshwise\[target-gpu\]\"`",
    ):
        installed_compiler("cuda")


class Installed(NamedTuple):
    """A distribution that is found, with its file or without."""

    version: str
    folder: Path | None

    def locate_file(self, file: str) -> Path:
        if self.folder is None:
            return Path("nowhere")
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return path


CUDA_12, CUDA_13 = "jax-cuda12-pjrt", "jax-cuda13-pjrt"


@pytest.fixture
def install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[dict[str, str], bool], None]:
    """Pretends that packages are installed in some versions."""

    def pretend(versions: dict[str, str], has_file: bool) -> None:
        def found(wanted: str) -> Installed:
            if wanted not in ("jaxlib", *versions):
                raise PackageNotFoundError(wanted)
            return Installed(versions.get(wanted, JAXLIB), tmp_path if has_file else None)

        monkeypatch.setattr(packages, "distribution", found)

    return pretend


@pytest.mark.parametrize(
    ("versions", "name"),
    [
        ({CUDA_13: JAXLIB}, CUDA_13),
        ({CUDA_12: "0.1", CUDA_13: JAXLIB}, CUDA_13),
        ({CUDA_12: JAXLIB, CUDA_13: JAXLIB}, CUDA_12),
    ],
)
def test_either_package_of_the_compiler_of_gpus_does(
    versions: dict[str, str], name: str, install: Callable[[dict[str, str], bool], None]
) -> None:
    install(versions, True)
    assert installed_compiler("cuda").name == f"{name} {JAXLIB}"


@pytest.mark.parametrize(
    ("versions", "has_file", "said"),
    [
        ({}, True, [f'{CUDA_12} or {CUDA_13}, is not installed: `pip install "{CUDA_12}==']),
        (
            {CUDA_13: "0.1"},
            True,
            [f"{CUDA_13} is 0.1, which does not fit", f'"{CUDA_13}=={JAXLIB}"'],
        ),
        ({CUDA_13: JAXLIB}, False, [f"{CUDA_13} has no file jax_plugins/xla_cuda13/"]),
        ({CUDA_12: "0.1", CUDA_13: "0.2"}, True, [f"{CUDA_12} is 0.1", f"{CUDA_13} is 0.2"]),
    ],
)
def test_the_remedy_names_the_package_that_is_there(
    versions: dict[str, str],
    has_file: bool,
    said: list[str],
    install: Callable[[dict[str, str], bool], None],
) -> None:
    install(versions, has_file)
    with pytest.raises(ClusterError) as error:
        installed_compiler("cuda")
    assert all(text in str(error.value) for text in said)
    assert (CUDA_12 in str(error.value)) == (CUDA_13 not in versions or CUDA_12 in versions)


def test_the_makefile_installs_what_fits() -> None:
    makefile = Path(__file__).parents[2] / "Makefile"
    lines = makefile.read_text().splitlines()
    (script,) = (x.partition(" := ")[2] for x in lines if x.startswith("REQUIREMENT"))
    command = [sys.executable, "-c", script, "cuda"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said == f"{CUDA_12}=={JAXLIB}\n"


@pytest.mark.parametrize(
    ("line", "version", "fits"),
    [
        ('libtpu==0.0.42.*; extra == "tpu"', "0.0.42.1", True),
        ('libtpu==0.0.42.*; extra == "tpu"', "0.0.42", True),
        ('libtpu==0.0.42.*; extra == "tpu"', "0.0.421", False),
        ('libtpu==0.0.42; extra == "tpu"', "0.0.43", False),
        ('libtpu>=0.0.42; extra == "tpu"', "0.0.43", True),
    ],
)
def test_jax_says_which_version_of_libtpu_fits(
    line: str, version: str, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "requires", lambda _: ["numpy>=2.0", line])
    package = packages.PACKAGES["tpu"][0]
    assert package.fits(version) == fits
    assert package.requirement == (line.partition(";")[0] if "==0" in line else "libtpu")


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (19.53G) exceeds available HBM (15.75G).",
            round(19.53 * GIB),
        ),
        (
            "the total memory required for HLO temporaries (1.21T) exceeds available HBM (15.75G).",
            round(1.21 * 1024 * GIB),
        ),
        ("RESOURCE_EXHAUSTED: too many of something (19.53G)", None),
    ],
)
def test_a_program_that_needs_too_much_memory_is_an_answer(
    text: str, num_bytes: int | None
) -> None:
    answer = refused_memory(text, 1.5)
    assert (answer and answer.memory.peak_bytes) == num_bytes
    assert answer is None or answer.is_too_large
    assert not ANSWER.is_too_large


def test_what_the_process_that_compiles_refuses_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = InstalledCompiler(name="a compiler 1.0", path=str(tmp_path / "missing.so"))
    monkeypatch.setattr(compiler, "installed_compiler", lambda _: installed)
    program = TargetProgram(name="the step", module=b"", digest="0", num_devices=1, options={})
    with pytest.raises(
        ProgramError, match=r"a compiler 1\.0 does not compile the step for h100: .*missing\.so"
    ):
        compile_programs(compile_target("h100"), [program], folder=tmp_path)
    assert not list(tmp_path.iterdir())
