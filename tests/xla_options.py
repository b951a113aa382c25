"""Options of XLA:CPU for tests."""

from __future__ import annotations

from typing import Any

# One LLVM module, and the emitters without MLIR: a fifth of the time for small programs.
QUICK: dict[str, Any] = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
# What XLA takes by itself, and so what users get.
USUAL: dict[str, Any] = {
    "xla_cpu_use_fusion_emitters": True,
    "xla_cpu_parallel_codegen_split_count": 32,
}
