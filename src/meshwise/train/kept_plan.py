"""The plan of a run, kept beside its checkpoints: a run that starts again takes the same one.

So its losses go on bit for bit, and nothing is planned anew.  Where the devices or the settings
differ, or the files do not say a plan, the run plans anew.  The plan is a file as `plan.to_json()`
writes it; the settings for which it was found stand in a file beside it.
"""

from __future__ import annotations

import json
from hashlib import sha256
from importlib.metadata import version

import jax

from meshwise.errors import MeshwiseError
from meshwise.plan.plan import Plan
from meshwise.runtime.job.job import Job
from meshwise.system.atomic_file import write_atomically
from meshwise.train.options import TrainOptions

FILE = "plan.json"
SETTINGS_FILE = "plan_settings.json"


def kept_plan(options: TrainOptions, job: Job | None = None) -> Plan | None:
    """Return the plan that a run is given, or else that with which it began.

    The latter only if the run is asked for the same and has such devices.

    Args:
        options: What to do; without a look at the devices nothing is known, so JAX starts.
        job: The processes, which all take what process 0 finds; None: this process is alone.
    """

    def found() -> str:
        if options.plan is not None:
            return options.plan.to_json()
        return "" if options.fresh or options.dump_ilp is not None else _text(options)

    text = found() if job is None else job.from_first("the plan of the run", found)
    return Plan.from_json(text) if text else None


def _text(options: TrainOptions) -> str:
    """Return the plan in the file, as JSON; empty where it says none for these options."""
    try:
        text = (options.out / FILE).read_text()
        kept = json.loads((options.out / SETTINGS_FILE).read_text())
        if kept != _settings(options, text):
            return ""
        return Plan.from_json(text).to_json()
    except (OSError, ValueError, RecursionError, MeshwiseError):
        return ""


def keep_plan(options: TrainOptions, plan: Plan) -> None:
    """Keep the plan of a run; one process of a job does it.

    Args:
        options: What was asked for.
        plan: What was found.
    """
    text = plan.to_json()
    write_atomically(options.out / FILE, text)
    write_atomically(options.out / SETTINGS_FILE, json.dumps(_settings(options, text)) + "\n")


def _settings(options: TrainOptions, plan: str) -> dict[str, object]:
    """Return what a plan depends on, and the checksum of its text: a changed plan is not taken."""
    devices = [(d.process_index, d.platform, d.device_kind) for d in jax.devices()]
    asked = {
        **options.identity(),
        "method": options.method,
        "mesh": options.mesh,
        "microbatches": options.microbatches,
        "stages": options.stages,
        "schedule": options.schedule,
        "memory_bytes": options.memory_bytes,
        "offload": options.offload,
        "cluster": None if options.cluster is None else str(options.cluster),
        "is_given": options.plan is not None,
        "devices": devices,
        "versions": [version(name) for name in ("meshwise", "jax", "jaxlib")],
        "plan_sha256": sha256(plan.encode()).hexdigest(),
    }
    # As a file has it.
    return json.loads(json.dumps(asked))
