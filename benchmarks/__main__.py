"""`python -m benchmarks [--quick] [--out DIR] [NAME ...]`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from benchmarks.between_meshes import between_meshes
from benchmarks.fidelity import fidelity
from benchmarks.hand_written import hand_written
from benchmarks.host_dispatch import host_dispatch
from benchmarks.measured_layers import measured_layers
from benchmarks.memory_limits import memory_limits
from benchmarks.mixed_clusters import mixed_clusters
from benchmarks.one_device import micro_batches, one_device
from benchmarks.one_gpu import one_gpu
from benchmarks.pipeline_dispatch import pipeline_dispatch
from benchmarks.planning import planning
from benchmarks.planning_time import planning_time
from benchmarks.record import write_record
from benchmarks.second_start import second_start

BENCHMARKS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "planning": planning,
    "planning_time": planning_time,
    "fidelity": fidelity,
    "hand_written": hand_written,
    "host_dispatch": host_dispatch,
    "between_meshes": between_meshes,
    "measured_layers": measured_layers,
    "memory_limits": memory_limits,
    "micro_batches": micro_batches,
    "mixed_clusters": mixed_clusters,
    "one_device": one_device,
    "one_gpu": one_gpu,
    "pipeline_dispatch": pipeline_dispatch,
    "second_start": second_start,
}
CPU_BENCHMARKS = (
    "planning",
    "planning_time",
    "fidelity",
    "hand_written",
    "host_dispatch",
    "between_meshes",
    "measured_layers",
    "memory_limits",
    "micro_batches",
    "mixed_clusters",
    "one_device",
    "pipeline_dispatch",
    "second_start",
)


def main() -> None:
    """Run the named benchmarks, all by default, and write a JSON file for each."""
    described = "\n".join(
        f"  {name:<16}{(run.__doc__ or '').splitlines()[0]}" for name, run in BENCHMARKS.items()
    )
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        epilog=f"benchmarks:\n{described}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="all by default")
    parser.add_argument("--quick", action="store_true", help="small and few: does it run at all")
    parser.add_argument("--out", type=Path, default=Path("bench-out"), help="folder for JSON")
    parser.add_argument("--gpu", action="store_true", help="run on the GPU of this machine")
    parser.add_argument("--devices", type=int, default=8, help="virtual CPU devices")
    args = parser.parse_args()
    unknown = set(args.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; see --help")
    if not args.gpu:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", args.devices)
    for name in args.names or (["one_gpu"] if args.gpu else CPU_BENCHMARKS):
        result = BENCHMARKS[name](args.quick)
        path = write_record(args.out, name, result)
        print(f"{name}: {path}\n{json.dumps(result, indent=2)}", flush=True)


if __name__ == "__main__":
    main()
