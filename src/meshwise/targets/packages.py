"""Where the compilers of targets are installed, and in which versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path
from types import MappingProxyType

from meshwise.errors import ClusterError


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerPackage:
    """The package that holds a compiler.

    Attributes:
        name: Name of the package.
        file: The plugin, in the folder in which packages are installed.
        extra: The extra of Meshwise that installs it; empty for none.
        extra_of_jax: The extra of JAX that says its version; empty where that is jaxlib's.
    """

    name: str
    file: str
    extra: str = ""
    extra_of_jax: str = ""

    @property
    def requirement(self) -> str:
        """What `pip install` is told: the name, with the version that fits the installed JAX."""
        if not self.extra_of_jax:
            return f"{self.name}=={distribution('jaxlib').version}"
        for line in requires("jax") or ():
            wanted, _, condition = line.partition(";")
            if wanted.startswith(f"{self.name}==") and f'"{self.extra_of_jax}"' in condition:
                return wanted.strip()
        return self.name

    def fits(self, version: str) -> bool:
        """Return whether a version is the one that is required, or JAX requires none."""
        wanted = self.requirement.partition("==")[2]
        if wanted.endswith(".*"):
            return f"{version}.".startswith(wanted.removesuffix("*"))
        return wanted in ("", version)


# Packages that hold the compiler of a platform, in order of preference.
PACKAGES: Mapping[str, tuple[CompilerPackage, ...]] = MappingProxyType(
    {
        "cuda": (
            CompilerPackage(
                name="jax-cuda12-pjrt",
                file="jax_plugins/xla_cuda12/xla_cuda_plugin.so",
                extra="target-gpu",
            ),
            CompilerPackage(
                name="jax-cuda13-pjrt", file="jax_plugins/xla_cuda13/xla_cuda_plugin.so"
            ),
        ),
        "tpu": (
            CompilerPackage(
                name="libtpu", file="libtpu/libtpu.so", extra="target-tpu", extra_of_jax="tpu"
            ),
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledCompiler:
    """A compiler that is here.

    Attributes:
        name: Name and version, as "jax-cuda12-pjrt 0.10.2".
        path: File of the plugin.
    """

    name: str
    path: str


def installed_compiler(platform: str) -> InstalledCompiler:
    """Return the compiler of a platform: of those that are installed, the first that fits.

    Args:
        platform: How JAX names the platform, as `cuda`.

    Raises:
        ClusterError: none is installed, or none in the version that fits the installed JAX.
    """
    problems: list[str] = []
    for package in PACKAGES[platform]:
        try:
            found = distribution(package.name)
        except PackageNotFoundError:
            continue
        path = Path(str(found.locate_file(package.file)))
        if not package.fits(found.version):
            problem = f"{package.name} is {found.version}, which does not fit the installed JAX"
        elif not path.is_file():
            problem = f"{package.name} has no file {package.file}"
        else:
            return InstalledCompiler(name=f"{package.name} {found.version}", path=str(path))
        problems.append(f"{problem}: {_remedy(package)}")
    if not problems:
        names = " or ".join(package.name for package in PACKAGES[platform])
        remedy = _remedy(PACKAGES[platform][0])
        problems.append(f"the compiler of this target, {names}, is not installed: {remedy}")
    raise ClusterError("; ".join(problems))


def requirement_of(platform: str) -> str:
    """Return what `pip install` is told for the compiler of a platform.

    Args:
        platform: How JAX names the platform, as `cuda`.
    """
    return PACKAGES[platform][0].requirement


def _remedy(package: CompilerPackage) -> str:
    line = f'`pip install "{package.requirement}"`'
    return f'{line}, or `pip install "meshwise[{package.extra}]"`' if package.extra else line
