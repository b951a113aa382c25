"""Large models, planned with `plan --verify`, and what their plans gain by true memory.

Each setting is planned and compiled until the plan fits by the compiler of its devices, which are
not here.  Beside it stand the plan by the memory rules of XLA:CPU, which is what there was before
targets had rules of their own, and the plan for as much memory as the compiled programs would
leave: what predictions that are exactly true would give.

    PYTHONPATH=build/compilers python -m benchmarks.guaranteed --out guaranteed.jsonl
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from benchmarks.fits import rows_of
from meshwise.api.verified_plan import plan_verified
from meshwise.api.verify import verify_planned
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import InfeasibleError
from meshwise.models.named import model_config
from meshwise.models.steps import model_step
from meshwise.planner.pipeline import plan_pipeline
from meshwise.planner.schedule_choice import PlannedPipeline
from meshwise.request.pipeline_request import PipelineRequest
from meshwise.schedules.registry import SEARCHED
from meshwise.trace.step import StepSignature
from meshwise.units import bytes_text, seconds_text


class Setting(NamedTuple):
    """A model and the devices that it is planned for."""

    model: str
    cluster: str
    batch: int
    dtype: str


SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        "GPT-39B": Setting("gpt-39b", "8x dgx-a100", 1024, "float16"),
        "Llama-70B": Setting("llama-70b", "8x dgx-h100", 256, "bfloat16"),
        "GPT-175B": Setting("gpt-175b", "128x dgx-h100", 1024, "bfloat16"),
        "MoE-70B": Setting("moe-70b", "8x dgx-h100", 1024, "bfloat16"),
        "Llama-8B": Setting("llama-8b", "v5e-64", 256, "bfloat16"),
    }
)


def without_rules(cluster: ClusterSpec) -> ClusterSpec:
    """The same cluster with devices whose compiler nobody knows: the rules of XLA:CPU hold."""
    groups = [
        replace(
            group,
            host=replace(group.host, device=replace(group.host.device, name="some device")),
        )
        for group in cluster.groups
    ]
    return replace(cluster, groups=tuple(groups))


def planned(setting: Setting, cluster: ClusterSpec, share: float = 1.0) -> PlannedPipeline:
    """Plan a setting for a share of the memory of its devices."""
    step, *args = model_step(
        model_config(setting.model, dtype=setting.dtype), setting.batch
    ).abstract
    request = PipelineRequest(cluster=cluster, schedules=SEARCHED, memory_share=share)
    signature = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")
    return plan_pipeline(step, tuple(args), {}, signature, request, lambda _: None)


def answer(name: str) -> dict[str, Any]:
    """Plan a setting in three ways, as a row."""
    setting = SETTINGS[name]
    cluster = ClusterSpec.virtual(setting.cluster)
    compiled_s: list[float] = []
    found, verified = plan_verified(
        lambda share: planned(setting, cluster, share),
        lambda plan: verify_planned(plan, listener=lambda _, a: compiled_s.append(a.seconds)),
    )
    fullest = max(verified.stages, key=lambda stage: stage.compiled_bytes / stage.limit_bytes)
    true_share = fullest.predicted_bytes / fullest.compiled_bytes
    return {
        "name": name,
        "setting": list(setting),
        "stages": [(s.predicted_bytes, s.compiled_bytes, s.limit_bytes) for s in verified.stages],
        "compiler": verified.compiler,
        "num_programs": len(verified.programs),
        "compile_s": round(sum(compiled_s), 1),
        "step_s": found.plan.formula_s,
        "true_share": true_share,
        "step_s_with_true_memory": _step_s(setting, cluster, true_share),
        "step_s_by_rules_of_xla_cpu": _step_s(setting, without_rules(cluster), 1.0),
    }


def _step_s(setting: Setting, cluster: ClusterSpec, share: float) -> float | None:
    try:
        return planned(setting, cluster, share).plan.formula_s
    except InfeasibleError:
        return None


def page(rows: list[dict[str, Any]]) -> str:
    """The rows as a table in Markdown."""
    lines = [
        "| model | on | stages | compiled, fullest device | limit | predicted / compiled |"
        " programs | step | with true memory | by the rules of XLA:CPU |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        stages = row["stages"]
        _, compiled, limit = max(stages, key=lambda stage: stage[1] / stage[2])
        ratios = [p / c for p, c, _ in stages]
        setting = Setting(*row["setting"])
        cells = [
            f"{row['name']}, {setting.dtype}, batch {setting.batch}",
            setting.cluster,
            str(len(stages)),
            bytes_text(compiled),
            bytes_text(limit),
            f"{min(ratios):.3f} to {max(ratios):.3f}",
            str(row["num_programs"]),
            seconds_text(row["step_s"]),
            _beside(row["step_s_with_true_memory"], row["step_s"]),
            _beside(row["step_s_by_rules_of_xla_cpu"], row["step_s"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _beside(seconds: float | None, base: float) -> str:
    return "no plan" if seconds is None else f"{seconds / base:.3f} of it"


def main() -> None:
    """Plan, compile and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(SETTINGS), action="append")
    parser.add_argument("--out", type=Path, required=True, help="Rows; those there are kept.")
    options = parser.parse_args()
    rows = rows_of(options.out) if options.out.exists() else []
    done = {row["name"] for row in rows}
    with options.out.open("a") as file:
        for name in options.only or SETTINGS:
            if name in done:
                continue
            rows.append(answer(name))
            file.write(json.dumps(rows[-1]) + "\n")
            file.flush()
            print(json.dumps(rows[-1]), flush=True)
    print(page(rows))


if __name__ == "__main__":
    main()
