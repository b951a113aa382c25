"""Where the compilers of targets are installed, and in which versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
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
        extra: The extra of Meshwise that installs it.
        extra_of_jax: The extra of JAX that says its version; empty where that is jaxlib's.
    """

    name: str
    file: str
    extra: str
    extra_of_jax: str = ""

    @property
    def version(self) -> str:
        """The version that fits the installed JAX; a `*` stands for any end."""
        if not self.extra_of_jax:
            return distribution("jaxlib").version
        for line in requires("jax") or ():
            wanted, _, condition = line.partition(";")
            if wanted.startswith(f"{self.name}==") and f'"{self.extra_of_jax}"' in condition:
                return wanted.partition("==")[2].strip()
        return "*"


PACKAGES: Mapping[str, CompilerPackage] = MappingProxyType(
    {
        "cuda": CompilerPackage(
            name="jax-cuda12-pjrt",
            file="jax_plugins/xla_cuda12/xla_cuda_plugin.so",
            extra="target-gpu",
        ),
        "tpu": CompilerPackage(
            name="libtpu", file="libtpu/libtpu.so", extra="target-tpu", extra_of_jax="tpu"
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
        ClusterError: it is not installed, or not in the version that fits the installed JAX.
    """
    package = PACKAGES[platform]
    try:
        found = distribution(package.name)
    except PackageNotFoundError as error:
        raise ClusterError(
            f"the compiler of this target, {package.name}, is not installed: {_remedy(platform)}"
        ) from error
    if not fnmatchcase(found.version, package.version):
        raise ClusterError(
            f"{package.name} is {found.version}, but the installed JAX goes with "
            f"{package.version}: {_remedy(platform)}"
        )
    path = Path(str(found.locate_file(package.file)))
    if not path.is_file():
        raise ClusterError(f"{package.name} has no file {package.file}: {_remedy(platform)}")
    return InstalledCompiler(name=f"{package.name} {found.version}", path=str(path))


def _remedy(platform: str) -> str:
    package = PACKAGES[platform]
    exact = f"{package.name}=={package.version}"
    return f'`pip install "{exact}"`, or `pip install "meshwise[{package.extra}]"`'
