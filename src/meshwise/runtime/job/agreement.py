"""What must be equal in all processes of a job is compared before any of them goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from meshwise.errors import ClusterError
from meshwise.runtime.job.job import PATIENCE_S, Job, text_of_processes


def check_agreement(
    job: Job, topic: str, facts: Mapping[str, str], *, patience_s: float = PATIENCE_S
) -> None:
    """Compare facts that must be equal in all processes.

    Args:
        job: The processes.
        topic: What they are at, for messages.
        facts: Texts by what they tell, as `{"jax": "0.10.2"}`.
        patience_s: How long a process waits for the others.

    Raises:
        ClusterError: they differ; it names the processes and what differs, the same in each.
    """
    found = disagreement(job, topic, facts, patience_s=patience_s)
    if found:
        raise ClusterError(
            f"the processes do not agree on {topic}: {'; '.join(found)}. Start all of them with "
            "the same code, arguments and packages"
        )


def disagreement(
    job: Job, topic: str, facts: Mapping[str, str], *, patience_s: float = PATIENCE_S
) -> list[str]:
    """Return in what facts differ between processes, a text each; the same in each process.

    Args:
        job: The processes.
        topic: What they are at, for messages.
        facts: Texts by what they tell.
        patience_s: How long a process waits for the others.
    """
    texts = job.exchange(topic, json.dumps(dict(facts)), patience_s=patience_s)
    return differences([json.loads(text) for text in texts])


def differences(facts: Sequence[Mapping[str, str]]) -> list[str]:
    """Return what differs, a text each.

    Args:
        facts: For each process its texts, by what they tell.
    """
    found: list[str] = []
    for name in dict.fromkeys(name for known in facts for name in known):
        who: dict[str, list[int]] = {}
        for process, known in enumerate(facts):
            who.setdefault(known.get(name, "nothing"), []).append(process)
        if len(who) > 1:
            told = (f"{value} in {text_of_processes(those)}" for value, those in who.items())
            found.append(f"{name} is {', '.join(told)}")
    return found
