"""Compilers of targets in `meshwise doctor`."""

from __future__ import annotations

from meshwise.errors import ClusterError
from meshwise.targets.installed import check_compilers
from meshwise.targets.packages import InstalledCompiler


def test_compilers_have_a_version_or_a_remedy() -> None:
    def compiler_of(platform: str) -> InstalledCompiler:
        if platform == "tpu":
            raise ClusterError('libtpu is not installed: `pip install "meshwise[target-tpu]"`')
        return InstalledCompiler(name="jax-cuda12-pjrt 0.10.2", path="plugin.so")

    gpu, tpu = check_compilers(compiler_of)
    assert (gpu.status, gpu.found) == ("ok", "jax-cuda12-pjrt 0.10.2; optional")
    assert (tpu.status, tpu.found) == ("note", "none that can be used; optional")
    assert 'pip install "meshwise[target-tpu]"' in tpu.remedy
    assert [finding.what for finding in check_compilers()] == ["GPU compiler", "TPU compiler"]
