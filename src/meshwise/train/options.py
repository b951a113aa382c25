"""What a training run is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from meshwise.cluster.spec import ClusterSpec
from meshwise.models.gpt import GptConfig
from meshwise.models.llama import LlamaConfig
from meshwise.models.named import MODEL_NAMES, model_config
from meshwise.models.sizes.gpt_sizes import BYTES, gpt_config
from meshwise.plan.plan import Plan
from meshwise.plan.record import ONE_PROGRAM

# Sizes of GPT, and models by their whole names.
TRAINED_MODELS = (
    *gpt_config.names,
    *(name for name in MODEL_NAMES if name.startswith(("gpt-", "llama-", "experts-"))),
)


def has_dropout(model: str) -> bool:
    """Return whether a model has dropout.

    Args:
        model: One of `TRAINED_MODELS`.
    """
    return model in gpt_config.names or model.startswith("gpt-")


def short_name(step: str) -> str:
    """Return the name of a step without its folder: the same for each way to spell it.

    Folders are left out, so that a run goes on where its files were moved.

    Args:
        step: As "folder/file.py:make" or "package.file:make", which both give "file:make".
    """
    place, _, function = step.rpartition(":")
    return f"{Path(place.removesuffix('.py')).name.rpartition('.')[2]}:{function}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """Settings of one run.

    Attributes:
        out: Folder of the run: checkpoints and the summary.
        text: File or folder to learn from; None for the standard library of this Python.
        step: A function that makes a step of the user's own, as "my_module:make"; None to train
            the model that `model` names.  With a step of the user's own, `text`, `model`, `seq`,
            `batch`, `learning_rate`, `warmup_steps`, `dropout`, `eval_every` and `eval_batches`
            have no effect.
        model: One of `TRAINED_MODELS`, on bytes.
        seq: Bytes in one training sequence.
        batch: Sequences in one step, over all devices and micro-batches.
        steps: Step at which the run ends, counted from the first start.
        learning_rate: Peak, reached after `warmup_steps`.
        warmup_steps: Linear warm-up; afterwards the rate falls with the root of the step.
        dropout: Rate of every dropout of the model; 0 where it has none (`has_dropout`).
        seed: Seed of the parameters, of the order of the text and of dropout.
        eval_every: Steps between two looks at the held-out text.
        eval_batches: Batches of held-out text in one look.
        save_every: Steps between two checkpoints.
        keep: Checkpoints that stay; the oldest goes when a new one is complete.
        method: `auto`, `intra`, `data`, `zero2`, `zero3`, `megatron:DxT` or `heuristic`.
        mesh: Shape of the device mesh; None lets the planner choose.
        microbatches: Parts of the batch that run one after the other, or `auto`; None for one on
            one mesh, and for `auto` in a pipeline.
        stages: Stages of a pipeline, or `auto`; None for one mesh.
        schedule: Of the pipeline, as `mw.Auto` has it; None for its default.
        memory_bytes: Limit of one device; None for what the cluster says.
        offload: Whether state that only the update reads stays in the memory of hosts, as
            `mw.Auto` has it.
        cluster: What is planned for; None for the built-in description of the devices.
        plan: The plan to run, so that nothing is searched; None to search one.
        measure: Whether one step is timed mesh by mesh; only for a pipeline.
        dump_ilp: Folder for every ILP of the planner; None for none.
        fresh: Whether checkpoints in `out` are removed, once there is a plan.
        start: The name of the job, the same at all its restarts; None if it has none.
    """

    out: Path
    step: str | None = None
    text: Path | None = None
    model: str = "small"
    seq: int = 128
    batch: int = 16
    steps: int = 400
    learning_rate: float = 3e-3
    warmup_steps: int = 40
    dropout: float = 0.0
    seed: int = 0
    eval_every: int = 50
    eval_batches: int = 8
    save_every: int = 100
    keep: int = 2
    method: str = "auto"
    mesh: tuple[int, ...] | None = None
    microbatches: int | Literal["auto"] | None = None
    stages: int | Literal["auto"] | None = None
    schedule: str | None = None
    memory_bytes: int | None = None
    offload: bool | None = None
    cluster: ClusterSpec | None = None
    plan: Plan | None = None
    dump_ilp: Path | None = None
    measure: bool = False
    fresh: bool = False
    start: str | None = None

    @property
    def num_microbatches(self) -> int | Literal["auto"]:
        """What is asked of the plan."""
        if self.microbatches is not None:
            return self.microbatches
        return 1 if self.stages is None else "auto"

    @property
    def has_stages(self) -> bool:
        """Whether the run is a pipeline, as it is asked for or as its plan says."""
        if self.plan is not None:
            return self.plan.schedule != ONE_PROGRAM
        return self.stages is not None

    def config(self) -> GptConfig | LlamaConfig:
        """Return the model: the named one, on bytes, with as many positions as `seq`."""
        name = f"gpt-{self.model}" if self.model in gpt_config.names else self.model
        config = model_config(name, vocab_size=BYTES, seq_len=self.seq)
        assert isinstance(config, GptConfig | LlamaConfig)
        return replace(config, dropout=self.dropout) if isinstance(config, GptConfig) else config

    def identity(self) -> dict[str, object]:
        """Return what must not change when a run is resumed, or its losses would be others.

        Method, cluster, mesh, stages, schedule, micro-batches, memory and offload may change: they
        do not change the meaning.
        """
        if self.step is not None:
            return {"step": short_name(self.step), "seed": self.seed}
        return {
            "model": self.model,
            "seq": self.seq,
            "batch": self.batch,
            "learning_rate": self.learning_rate,
            "warmup_steps": self.warmup_steps,
            "dropout": self.dropout,
            "seed": self.seed,
        }
