"""A judge that is not ours: a target's compiler on our plans and on shardings written by hand.

The same step is compiled as Meshwise plans it, and under plain `jax.jit` with the shardings of
`hand_shardings`, XLA's options as they are and the state donated.  What is compared is what the
compiler reports: memory of a device, collectives, work.  Nothing is run.

    python -m benchmarks.third_party --place h100 --out rows.jsonl --page tables.md

The compiler must be installed (`pip install "meshwise[target-gpu]"`); no device is needed.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import meshwise as mw
from benchmarks.compiler_report import report
from benchmarks.fits import rows_of
from benchmarks.hand_shardings import Recipe, fsdp, fsdp_tensor, hand_jit, megatron
from benchmarks.third_party_page import page
from meshwise.errors import InfeasibleError, MeshwiseError
from meshwise.jax_compat.compilers import module_of
from meshwise.models.named import model_config
from meshwise.models.steps import Config, ModelStep, model_step
from meshwise.targets.catalog import compile_target
from meshwise.targets.child import CompileAnswer
from meshwise.targets.compiler import TargetProgram, compile_programs
from meshwise.targets.lowered import WITHOUT_DEVICE
from meshwise.targets.packages import installed_compiler


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A step that both sides compile.

    Attributes:
        model: Its name, as in `models.named`.
        rows: Batch size.
        changes: Fields of its configuration that are set otherwise: fewer layers.
    """

    model: str
    rows: int
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> Config:
        """The configuration: products in bfloat16, parameters in float32."""
        return model_config(self.model, dtype="bfloat16", **self.changes)


# The last two are one pipeline stage each as one step: a few layers of the model's true width, with
# embedding and loss, rematerialised.
CASES: Mapping[str, Case] = MappingProxyType(
    {
        "gpt-350m": Case(model="gpt-350m", rows=32, changes={"num_layers": 4}),
        "llama-8b": Case(
            model="llama-8b",
            rows=16,
            changes={"num_layers": 2, "seq_len": 2048, "vocab_size": 32000},
        ),
        "moe-380m": Case(model="moe-380m", rows=32, changes={"num_layers": 2}),
        "gpt-39b stage": Case(model="gpt-39b", rows=16, changes={"num_layers": 3, "remat": True}),
        "llama-70b stage": Case(
            model="llama-70b",
            rows=16,
            changes={"num_layers": 3, "seq_len": 2048, "vocab_size": 32000, "remat": True},
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Devices of a target.

    Attributes:
        target: Name of the target.
        cluster: The same devices, as `Cluster.virtual` takes them.
        view: Sizes of the two axes of recipes that have two.
    """

    target: str
    cluster: str
    view: tuple[int, int]


PLACES: Mapping[str, Place] = MappingProxyType(
    {
        "h100": Place(target="h100", cluster="1x dgx-h100", view=(2, 4)),
        "v5e-8": Place(target="v5e", cluster="v5e-8", view=(2, 4)),
        "v5e-16": Place(target="v5e", cluster="v5e-16", view=(4, 4)),
    }
)
# Within the memory that the least of the shardings by hand needs.
LEAST = "IntraOp(), least memory"


def hand_ways(place: Place) -> dict[str, Recipe]:
    """Return the recipes that are tried, by name.

    Args:
        place: The devices.
    """
    rows, tensor = place.view
    return {
        "FSDP": fsdp(rows * tensor),
        f"Megatron {rows}x{tensor}": megatron(rows, tensor),
        f"Megatron {rows}x{tensor}, sequence": megatron(rows, tensor, by_sequence=True),
        f"FSDP x TP {rows}x{tensor}": fsdp_tensor(rows, tensor),
    }


def our_ways(place: Place, least_bytes: int | None) -> dict[str, tuple[mw.Method, int | None]]:
    """Return our methods and the memory that each may use, by name.

    Args:
        place: The devices.
        least_bytes: Compiled peak of the sharding by hand that needs least memory.
    """
    found: dict[str, tuple[mw.Method, int | None]] = {
        "IntraOp()": (mw.IntraOp(), None),
        "Zero3()": (mw.Zero3(), None),
        f"Megatron{place.view}": (mw.Megatron(*place.view), None),
    }
    if least_bytes is not None:
        found[LEAST] = (mw.IntraOp(), least_bytes)
    return found


def hand_row(case: Case, parts: ModelStep, recipe: Recipe, place: Place) -> dict[str, Any]:
    """Compile a step that is sharded by hand.

    Args:
        case: The step.
        parts: The step, made.
        recipe: The way to shard it.
        place: Its devices.
    """
    target = compile_target(place.target)
    jitted = hand_jit(case.config, parts, recipe)
    lowered = jitted.trace(parts.state, parts.batch).lower(lowering_platforms=(target.platform,))
    module, digest = module_of(lowered)
    program = TargetProgram(
        name="the step",
        module=module,
        digest=digest,
        num_devices=recipe.num_devices,
        options=WITHOUT_DEVICE.get(target.platform, {}),
    )
    (answer,) = compile_programs(target, [program])
    mesh = mw.Cluster.virtual(place.cluster).mesh(recipe.sizes, recipe.names)
    return {"mesh": recipe.sizes, **report(answer, mesh)}


def our_row(
    parts: ModelStep, method: mw.Method, memory_bytes: int | None, place: Place
) -> dict[str, Any]:
    """Plan a step and compile what comes out.

    Args:
        parts: The step.
        method: How it is planned.
        memory_bytes: What a device may use by the plan's count; None: what it has.
        place: Its devices.
    """
    step = mw.parallelize(
        parts.step,
        method=method,
        cluster=mw.Cluster.virtual(place.cluster),
        memory_bytes=memory_bytes,
    )
    answers: list[CompileAnswer] = []
    plan = step.plan(parts.state, parts.batch)
    step.verify(
        parts.state,
        parts.batch,
        target=place.target,
        listener=lambda _, answer: answers.append(answer),
    )
    (answer,) = answers
    mesh = plan.stages[0].mesh
    return {
        "mesh": mesh.sizes,
        "predicted_peak_bytes": plan.peak_bytes,
        "predicted_step_s": plan.step_time_s,
        **report(answer, mesh),
    }


def answer(name: str, place_name: str, way: tuple[str, str], rows: Sequence[Any]) -> dict[str, Any]:
    """Return the row of a step, sharded in one way.

    Args:
        name: One of `CASES`.
        place_name: One of `PLACES`.
        way: "hand" or "Meshwise", and the name of the way there.
        rows: The rows so far.
    """
    case, place = CASES[name], PLACES[place_name]
    parts = model_step(case.config, case.rows)
    row: dict[str, Any] = {"case": name, "place": place_name, "side": way[0], "way": way[1]}
    start = time.monotonic()
    try:
        if way[0] == "hand":
            row |= hand_row(case, parts, hand_ways(place)[way[1]], place)
        else:
            method, memory_bytes = our_ways(place, _least_bytes(rows, name, place_name))[way[1]]
            try:
                row |= our_row(parts, method, memory_bytes, place)
            except InfeasibleError as error:
                # It names the smallest plan that it found.
                row["refused"] = str(error)
                (smallest,) = re.findall(r"peaks at [^(]*\((\d+) bytes\)", str(error))
                row |= our_row(parts, method, int(smallest), place)
    except MeshwiseError as error:
        row["error"] = f"{type(error).__name__}: {error}"
    row["compiler"] = installed_compiler(compile_target(place.target).platform).name
    row["seconds"] = round(time.monotonic() - start, 1)
    return row


def _least_bytes(rows: Sequence[Any], case: str, place: str) -> int | None:
    """Return the least peak of the shardings by hand of a case; None before there is one."""
    found = [
        row["peak_bytes"]
        for row in rows
        if (row["case"], row["place"], row["side"]) == (case, place, "hand") and "error" not in row
    ]
    return min(found, default=None)


def main() -> None:
    """Compile what the file does not have yet, and write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--place", choices=list(PLACES), default="h100")
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--ways", nargs="*", help="names of ways; all by default")
    parser.add_argument("--out", type=Path, required=True, help="rows; those there are kept")
    parser.add_argument("--page", type=Path, help="where the tables of all rows go")
    options = parser.parse_args()
    rows = rows_of(options.out)
    done = {(row["case"], row["place"], row["side"], row["way"]) for row in rows}
    place = PLACES[options.place]
    for name in options.cases:
        ways = [("hand", way) for way in hand_ways(place)]
        ways += [("Meshwise", way) for way in our_ways(place, 0)]
        for way in ways:
            if (name, options.place, *way) in done or way[1] not in (options.ways or [way[1]]):
                continue
            row = answer(name, options.place, way, rows)
            rows.append(row)
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            said = row.get("error") or f"{row['peak_bytes'] / 2**20:.0f} MiB"
            print(name, *way, said, f"{row['seconds']} s", flush=True)
    if options.page is not None:
        options.page.write_text(page(rows))


if __name__ == "__main__":
    main()
