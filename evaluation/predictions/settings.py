"""What is planned and run, drawn by a seed: all in which plans for two hosts can differ."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

import meshwise as mw
from meshwise.cluster.spec import ClusterSpec
from meshwise.models.gpt import GptConfig
from meshwise.models.steps import ModelStep, model_step
from meshwise.resharding.cross_mesh.strategies import STRATEGIES

DEVICES_PER_HOST = 2
_VOCABULARY, _HEADS = 512, 4
_MESH = ("IntraOp", "DataParallel", "Zero3")
_SCHEDULES = ("gpipe", "1f1b", "eager-1f1b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A GPT, and how it is run.

    Attributes:
        hidden: Width of the stream.
        num_layers: Blocks.
        seq_len: Tokens of a row.
        rows: Batch size.
        method: Name of a method for one mesh over all hosts; "stages" for a pipeline.
        num_stages: Of a pipeline.
        num_microbatches: B.
        schedule: Of a pipeline.
        transfers: A pipeline's strategy of transfers.
    """

    hidden: int
    num_layers: int
    seq_len: int
    rows: int
    method: str
    num_stages: int = 1
    num_microbatches: int = 1
    schedule: str = ""
    transfers: str = ""

    def __str__(self) -> str:
        """Return it in a line."""
        model = f"GPT {self.num_layers} x {self.hidden}, {self.rows} x {self.seq_len} tokens"
        if self.method != "stages":
            return f"{model}: {self.method}, B {self.num_microbatches}"
        return (
            f"{model}: {self.num_stages} stages, {self.schedule}, B {self.num_microbatches}, "
            f"{self.transfers}"
        )

    @property
    def model(self) -> ModelStep:
        """Its training step, with Adam."""
        config = GptConfig(
            num_layers=self.num_layers,
            hidden=self.hidden,
            num_heads=_HEADS,
            seq_len=self.seq_len,
            vocab_size=_VOCABULARY,
        )
        return model_step(config, self.rows)

    def parallel(self, cluster: ClusterSpec) -> Any:
        """Return its step on a cluster, which is not planned yet."""
        if self.method == "stages":
            method: Any = mw.Auto(
                stages=self.num_stages, schedule=self.schedule, transfers=self.transfers
            )
        else:
            method = getattr(mw, self.method)()
        return mw.parallelize(
            self.model.step,
            method=method,
            cluster=cluster,
            num_microbatches=self.num_microbatches,
        )

    def fields(self) -> dict[str, Any]:
        """Return what `Setting` makes the same of."""
        return asdict(self)


def drawn(count: int, seed: int) -> list[Setting]:
    """Return settings by a seed: a third of them on one mesh, others as pipelines.

    Args:
        count: How many.
        seed: The seed.
    """
    chance = random.Random(seed)
    strategies = tuple(STRATEGIES)
    found: list[Setting] = []
    for number in range(count):
        hidden, layers = chance.choice(((128, 4), (256, 2), (256, 4)))
        size: dict[str, Any] = {
            "hidden": hidden,
            "num_layers": layers,
            "seq_len": chance.choice((64, 128)),
            "rows": chance.choice((16, 32)),
        }
        if number % 3 == 0:
            found.append(
                Setting(
                    **size, method=chance.choice(_MESH), num_microbatches=chance.choice((1, 2, 4))
                )
            )
            continue
        found.append(
            Setting(
                **size,
                method="stages",
                num_stages=2,
                num_microbatches=chance.choice((1, 2, 4, 8)),
                schedule=chance.choice(_SCHEDULES),
                transfers=chance.choice(strategies),
            )
        )
    return found
