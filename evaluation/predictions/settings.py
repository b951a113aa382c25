"""What is planned and run, drawn by a seed: all in which plans for two hosts can differ."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, replace
from typing import Any

import meshwise as mw
from meshwise.cluster.spec import ClusterSpec
from meshwise.models.gpt import GptConfig
from meshwise.models.steps import ModelStep, model_step
from meshwise.models.u_transformer import UTransformerConfig
from meshwise.resharding.cross_mesh.strategies import BROADCAST, STRATEGIES

DEVICES_PER_HOST = 2
_VOCABULARY, _HEADS = 512, 4
_MESH = ("IntraOp", "DataParallel", "Zero3")
# Of a step of the comparison end to end.
_MICROBATCHES = 4
_SCHEDULES = ("gpipe", "1f1b", "eager-1f1b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A model, and how it is run.

    Attributes:
        hidden: Width of a GPT's stream; channels of the highest level of a U-Transformer.
        num_layers: Blocks, or levels.
        seq_len: Tokens of a row, or height and width of an image.
        rows: Batch size.
        family: "GPT" or "U-Transformer".
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
    family: str = "GPT"
    num_stages: int = 1
    num_microbatches: int = 1
    schedule: str = ""
    transfers: str = ""

    def __str__(self) -> str:
        """Return it in a line."""
        parts = "x".join(map(str, (self.num_layers, self.hidden, self.rows, self.seq_len)))
        model = f"{self.family} {parts}"
        if self.method != "stages":
            return f"{model}: {self.method}, B {self.num_microbatches}"
        return (
            f"{model}: {self.num_stages} stages, {self.schedule}, B {self.num_microbatches}, "
            f"{self.transfers}"
        )

    @property
    def model(self) -> ModelStep:
        """Its training step, with Adam."""
        if self.family != "GPT":
            return model_step(
                UTransformerConfig(
                    base_channels=self.hidden, num_levels=self.num_layers, image_size=self.seq_len
                ),
                self.rows,
            )
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


def end_to_end() -> list[Setting]:
    """Return AlpaComm's comparison end to end: two models in two stages, sent in all ways."""
    gpt = Setting(hidden=512, num_layers=4, seq_len=128, rows=32, method="stages")
    net = replace(gpt, family="U-Transformer", hidden=64, num_layers=3, seq_len=32)
    ways = [*((strategy, "1f1b") for strategy in STRATEGIES), (BROADCAST, "eager-1f1b")]
    return [
        replace(
            model, num_stages=2, num_microbatches=_MICROBATCHES, transfers=way, schedule=schedule
        )
        for model in (gpt, net)
        for way, schedule in ways
    ]
