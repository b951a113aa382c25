"""What the paper evaluated: models, GPUs, batches.

Source: Alpa section 8 (docs/facts.md section 6); the sizes of the ablation from the Alpa
repository, `benchmark/alpa/exp_intra_ablation.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from evaluation.rates import first_devices, with_rate
from evaluation.steps import BFLOAT16, HALF
from meshwise.cluster.spec import ClusterSpec
from meshwise.models.named import model_config
from meshwise.models.steps import Config
from meshwise.units import TERA

# What dense products reach in float16, from Megatron-LM's run on one V100.
# Source: `python -m benchmarks anchor`, docs/measurements/anchor.md.
FLOAT16_FLOP_PER_S = 48.1 * TERA
HOST = "p3.16xlarge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One column of a figure.

    Attributes:
        name: For the command line and for files.
        model: One of `models.named.MODEL_NAMES`.
        num_devices: GPUs, some of one host or whole hosts.
        batch: Rows of the whole batch.
        changes: Fields of the model's configuration that differ.
        microbatches: Values of B to try; None for all powers of two.
        host: Kind of the hosts.
        blocks: Whether layers are the model's repeated blocks; else as many as repeat.
    """

    name: str
    model: str
    num_devices: int
    batch: int
    changes: tuple[tuple[str, Any], ...] = ()
    microbatches: tuple[int, ...] | None = None
    host: str = HOST
    blocks: bool = True

    @property
    def config(self) -> Config:
        """The model; transformers in float16, with a float32 copy in the optimizer's state."""
        half = {} if self.model.startswith("wide-resnet") else HALF
        return model_config(self.model, **{**half, **dict(self.changes)})

    @property
    def cluster(self) -> ClusterSpec:
        """Where it runs."""
        one = ClusterSpec.virtual(f"1x {self.host}")
        if self.num_devices < one.num_devices:
            found = first_devices(one, self.num_devices)
        else:
            found = ClusterSpec.virtual(f"{self.num_devices // one.num_devices}x {self.host}")
        if self.host != HOST:
            return found
        return with_rate(found, "float16", FLOAT16_FLOP_PER_S, "Megatron-LM on one V100")


def _row(family: str, batch: int, sizes: Mapping[str, int], *, blocks: bool) -> list[Setting]:
    return [
        Setting(
            name=f"{family}-{size}",
            model=f"{family}-{size}",
            num_devices=count,
            batch=batch,
            blocks=blocks,
        )
        for size, count in sizes.items()
    ]


GPT = _row(
    "gpt", 1024, {"350m": 1, "1.3b": 4, "2.6b": 8, "6.7b": 16, "15b": 32, "39b": 64}, blocks=True
)
MOE = _row(
    "moe", 1024, {"380m": 1, "1.3b": 4, "2.4b": 8, "10b": 16, "27b": 32, "70b": 64}, blocks=True
)
WIDE_RESNET = [
    *_row(
        "wide-resnet",
        1536,
        {"250m": 1, "1b": 4, "2b": 8, "4b": 16, "6.8b": 32},
        blocks=False,
    ),
    *_row("wide-resnet", 1520, {"13b": 64}, blocks=False),
]

_ABLATION_GPT = (("hidden", 5760), ("num_layers", 8), ("num_heads", 40), ("vocab_size", 25600))
_ABLATION_MOE = (
    ("hidden", 1536), ("ffn", 12288), ("num_layers", 8), ("num_heads", 24), ("num_experts", 32),
    ("vocab_size", 51200), ("group_size", 1024),
)  # fmt: skip
ABLATION = [
    Setting(
        name="gpt-ablation",
        model="gpt-2.6b",
        num_devices=8,
        batch=8,
        changes=_ABLATION_GPT,
        microbatches=(1,),
    ),
    Setting(
        name="moe-ablation",
        model="moe-2.4b",
        num_devices=8,
        batch=8,
        changes=_ABLATION_MOE,
        microbatches=(1,),
    ),
    Setting(
        name="wide-resnet-ablation",
        model="wide-resnet-2b",
        num_devices=8,
        batch=32,
        microbatches=(1,),
        blocks=False,
    ),
]

# Beyond the paper: today's models on today's hosts, in bfloat16, about 4 million tokens a step.
_GPT3 = (("hidden", 12288), ("num_layers", 96), ("num_heads", 96), ("seq_len", 2048))
LARGE = [
    Setting(
        name=f"llama-70b-{host}",
        model="llama-70b",
        num_devices=64,
        batch=512,
        changes=tuple(BFLOAT16.items()),
        microbatches=(32, 64, 128, 256),
        host=host,
    )
    for host in ("dgx-a100", "dgx-h100")
] + [
    Setting(
        name="gpt-175b",
        model="gpt-39b",
        num_devices=1024,
        batch=2048,
        changes=(*_GPT3, *BFLOAT16.items()),
        microbatches=(32, 64, 128),
        host="dgx-h100",
    )
]

SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {s.name: s for s in (*GPT, *MOE, *WIDE_RESNET, *ABLATION, *LARGE)}
)
