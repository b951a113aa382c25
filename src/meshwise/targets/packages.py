"""Where the compilers of targets are installed, and in which versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import MappingProxyType

from meshwise.errors import ClusterError


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerPackage:
    """The package that holds a compiler, in the version of jaxlib.

    Attributes:
        name: Name of the package.
        file: The plugin, in the folder in which packages are installed.
        extra: The extra of Meshwise that installs it.
    """

    name: str
    file: str
    extra: str


PACKAGES: Mapping[str, CompilerPackage] = MappingProxyType(
    {
        "cuda": CompilerPackage(
            name="jax-cuda12-pjrt",
            file="jax_plugins/xla_cuda12/xla_cuda_plugin.so",
            extra="target-gpu",
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
    """Return the compiler of a platform.

    Args:
        platform: How JAX names the platform, as `cuda`.

    Raises:
        ClusterError: it is not installed, or not in the version of the installed jaxlib.
    """
    package = PACKAGES[platform]
    jaxlib = distribution("jaxlib").version
    try:
        found = distribution(package.name)
    except PackageNotFoundError as error:
        raise ClusterError(
            f"the compiler of this target, {package.name}, is not installed: {_remedy(platform)}"
        ) from error
    if found.version != jaxlib:
        raise ClusterError(
            f"{package.name} is {found.version}, but jaxlib is {jaxlib}: {_remedy(platform)}"
        )
    path = Path(str(found.locate_file(package.file)))
    if not path.is_file():
        raise ClusterError(f"{package.name} has no file {package.file}: {_remedy(platform)}")
    return InstalledCompiler(name=f"{package.name} {found.version}", path=str(path))


def _remedy(platform: str) -> str:
    package = PACKAGES[platform]
    exact = f"{package.name}=={distribution('jaxlib').version}"
    return f'`pip install "{exact}"`, or `pip install "meshwise[{package.extra}]"`'
