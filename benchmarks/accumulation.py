"""A step with micro-batches beside gradient accumulation written by hand, both for one GPU.

Both are compiled by XLA:GPU with the same options, without a GPU (`pip install
"meshwise[target-gpu]"`), and their scheduled programs are compared: kernels, the bytes that these
read and write, FLOP of products, memory.  No time is measured.

    python -m benchmarks.accumulation --model gpt-350m --dtype bfloat16
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

import meshwise as mw
from benchmarks.hand_accumulation import hand_written_step
from benchmarks.kernels import Kernel, kernels
from benchmarks.target_memory import CLUSTERS, MODELS
from meshwise.cluster.host import HostGroup
from meshwise.cluster.spec import ClusterSpec
from meshwise.errors import PlanError
from meshwise.models.named import model_config
from meshwise.models.steps import Config, model_step
from meshwise.plan.text.columns import table
from meshwise.planner.step import PlannedProgram, plan_call
from meshwise.planner.step_call import StepCall
from meshwise.request.plan_request import PlanRequest
from meshwise.runtime.hlo.module import parse_module
from meshwise.runtime.hlo.walk import Executed
from meshwise.targets.catalog import compile_target
from meshwise.targets.child import CompileAnswer
from meshwise.targets.compiler import TargetProgram, compile_programs
from meshwise.targets.lowered import step_program, target_program
from meshwise.trace.step import StepSignature
from meshwise.units import bytes_text, flop_text

OURS, THEIRS, FULL = "ours", "by hand", "full batch"
SIGNATURE = StepSignature(batch_argnums=(1,), batch_dims=0, donate_argnums="auto")


def one_device(cluster: str) -> ClusterSpec:
    """Return a cluster of one device of the hosts of another."""
    host = dataclasses.replace(mw.Cluster.virtual(cluster).host, num_devices=1, num_nics=1)
    return ClusterSpec(name=f"one device of {cluster}", groups=(HostGroup(count=1, host=host),))


def programs(
    config: Config, rows: int, num_microbatches: int, target: str
) -> Mapping[str, TargetProgram]:
    """Lower our step, the one written by hand, and the one without a loop."""
    parts = model_step(config, rows)
    platform = compile_target(target).platform
    call = StepCall(fun=parts.step, args=(parts.state, parts.batch), kwargs={}, signature=SIGNATURE)
    request = PlanRequest(
        method=mw.IntraOp(),
        cluster=lambda: one_device(CLUSTERS[target]),
        num_microbatches=num_microbatches,
    )
    planned = plan_call(call, request)
    if not isinstance(planned, PlannedProgram):
        raise PlanError(f"a step on one device is planned as {type(planned).__name__}")

    def by_hand(name: str, number: int) -> TargetProgram:
        step = jax.jit(hand_written_step(config, rows, number), donate_argnums=0)
        traced: Any = step.trace(parts.state, parts.batch)
        return target_program(name, traced.lower(lowering_platforms=(platform,)), 1, platform)

    return {
        OURS: step_program(planned.traced, planned.plan, platform),
        THEIRS: by_hand(THEIRS, num_microbatches),
        FULL: by_hand(FULL, 1),
    }


def page(answers: Mapping[str, CompileAnswer]) -> str:
    """Return the comparison as a text."""
    found = {name: kernels(parse_module(answer.text)) for name, answer in answers.items()}
    sums = {name: _sums(run) for name, run in found.items()}
    rows = [_row(name, sums[name], answers[name]) for name in answers]
    head = ("program", "kernels", "runs", "copies", "bytes", "in loops", "FLOP", "temporary")
    lines = table(head, rows, "lrrrrrrr")
    for what in ("kernels", "runs", "bytes"):
        lines.append(f"{what}, ours / by hand: {sums[OURS][what] / sums[THEIRS][what]:.3f}")
    temporary = [answers[name].memory.temporary_bytes for name in (OURS, THEIRS)]
    lines += [f"temporary, ours / by hand: {temporary[0] / temporary[1]:.3f}", ""]
    kinds = sorted({item.value.kind for run in found.values() for item in run})
    cells = [(kind, *(_cell(found[name], kind) for name in answers)) for kind in kinds]
    lines += table(("kind: runs, bytes", *answers), cells, "lrrr")
    return "\n".join(lines) + "\n"


def _sums(found: tuple[Executed[Kernel], ...]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for item in found:
        kernel, count = item.value, item.count
        sums["kernels"] += 1
        sums["runs"] += count
        sums["copies"] += count * (kernel.kind == "copy")
        sums["bytes"] += count * kernel.num_bytes
        sums["in loops"] += count * kernel.num_bytes * kernel.is_in_loop
        sums["flop"] += count * kernel.flop
    return sums


def _row(name: str, sums: Counter[str], answer: CompileAnswer) -> tuple[str, ...]:
    return (
        name,
        *(str(sums[what]) for what in ("kernels", "runs", "copies")),
        *(bytes_text(sums[what]) for what in ("bytes", "in loops")),
        flop_text(sums["flop"]),
        bytes_text(answer.memory.temporary_bytes),
    )


def _cell(found: tuple[Executed[Kernel], ...], kind: str) -> str:
    some = [item for item in found if item.value.kind == kind]
    moved = sum(item.count * item.value.num_bytes for item in some)
    return f"{sum(item.count for item in some)}, {bytes_text(moved)}"


def main() -> None:
    """Compile the programs of a model and print what they need."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(MODELS), default="gpt-350m", help="a few layers")
    parser.add_argument("--rows", type=int, default=32, help="batch size")
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--dtype", default="bfloat16", help="of products")
    parser.add_argument("--remat", action="store_true", help="blocks are computed again")
    parser.add_argument("--scan", action="store_true", help="one loop over all layers")
    parser.add_argument("--target", choices=list(CLUSTERS), default="h100")
    parser.add_argument("--texts", type=Path, help="folder for the compiled programs")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    changes = {**MODELS[options.model], "dtype": options.dtype}
    changes |= {"remat": True} if options.remat else {}
    changes |= {"scan_layers": True} if options.scan else {}
    config = model_config(options.model, **changes)
    made = programs(config, options.rows, options.microbatches, options.target)
    found = compile_programs(compile_target(options.target), list(made.values()))
    answers = dict(zip(made, found, strict=True))
    if options.texts is not None:
        options.texts.mkdir(parents=True, exist_ok=True)
        for name, answer in answers.items():
            (options.texts / f"{name}.hlo".replace(" ", "-")).write_text(answer.text)
    print(page(answers), end="")


if __name__ == "__main__":
    main()
