"""The figures and tables of the paper: which settings, which methods, what was published.

Source: Alpa section 8 (docs/facts.md section 6).  Curves were published as pictures only, so what
stands here of them is what the text says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from evaluation.paper.methods import (
    EQUAL_LAYER,
    EQUAL_OPERATOR,
    INTRA,
    MEGATRON_NARROW,
    OURS,
    THREE_STAGES,
)
from evaluation.paper.settings import ABLATION, GPT, LARGE, MOE, WIDE_RESNET, Setting

MEGATRON, DEEPSPEED, PP_DP = "Megatron-LM", "DeepSpeed", "PP-DP"
INTER, ALPA = "inter-op only", "Alpa"
DATA_PARALLEL, ZERO2, ZERO3 = "data parallel", "ZeRO-2", "ZeRO-3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure or table.

    Attributes:
        name: For the command line and for files.
        title: What it shows.
        settings: Its columns.
        methods: Its rows or curves.
        published: What the paper says of it.
        shows: `rate` in PFLOP/s, `planning` in seconds, `ways` to send between stages, or `plans`.
    """

    name: str
    title: str
    settings: tuple[Setting, ...]
    methods: tuple[str, ...]
    published: tuple[str, ...]
    shows: str = "rate"


_ALL = (
    Figure(
        name="fig7a",
        title="Figure 7a: GPT, weak scaling",
        settings=tuple(GPT),
        methods=(OURS, ALPA, MEGATRON, INTRA, INTER),
        published=(
            "Alpa on a par with the best (dp, tp, pp) of Megatron-LM, slightly ahead in several "
            "settings.",
            "Intra-op only is poor beyond 16 GPUs; inter-op only stays near linear.",
        ),
    ),
    Figure(
        name="fig7b",
        title="Figure 7b: mixture of experts, weak scaling",
        settings=tuple(MOE),
        methods=(OURS, ALPA, DEEPSPEED, INTRA, INTER),
        published=(
            "3.5 times DeepSpeed on 2 nodes (16 GPUs), 9.7 times on 4 (32 GPUs).",
            "Inter-op only runs out of memory on 32 and 64 GPUs.",
        ),
    ),
    Figure(
        name="fig7c",
        title="Figure 7c: Wide-ResNet, weak scaling",
        settings=tuple(WIDE_RESNET),
        methods=(OURS, ALPA, PP_DP, INTRA, INTER),
        published=(
            "80 % weak scaling on 32 GPUs.",
            "PP-DP and inter-op only run out of memory.",
        ),
    ),
    Figure(
        name="fig8",
        title="Figure 8: intra-operator parallelism alone, 8 GPUs of one host",
        settings=tuple(ABLATION),
        methods=(INTRA, DATA_PARALLEL, ZERO2, ZERO3, "Heuristic"),
        published=(
            "Plain data parallel runs out of memory.",
            "ZeRO-2 and ZeRO-3 lose when gradients outweigh activations.",
            "Heuristic loses to all-round communication; the ILP is best everywhere.",
        ),
    ),
    Figure(
        name="fig9",
        title="Figure 9: inter-operator parallelism, rules in place of the search",
        settings=(*GPT[2:5], *WIDE_RESNET[2:5]),
        methods=(OURS, EQUAL_LAYER, EQUAL_OPERATOR),
        published=(
            "The search is never worse than equal operator and equal layer, and strictly better on "
            "Wide-ResNet.",
        ),
    ),
    Figure(
        name="fig10",
        title="Figure 10: time to plan GPT",
        settings=tuple(GPT),
        methods=(OURS,),
        published=("Compilation time grows linearly with model and cluster.",),
        shows="planning",
    ),
    Figure(
        name="fig11",
        title="Figure 11: ways to send between stages, Wide-ResNet",
        settings=tuple(WIDE_RESNET[3:5]),
        methods=(OURS, THREE_STAGES),
        published=(
            "On 32 GPUs 2.0 times as fast with a local all-gather as with plain send and receive; "
            "a signal of one byte is the bound.",
        ),
        shows="ways",
    ),
    Figure(
        name="table5",
        title="Table 5: time to plan GPT-39B on 64 GPUs",
        settings=(GPT[-1],),
        methods=(OURS,),
        published=(
            "Compile 1582.66 s, profile 804.48 s, stage construction 1.65 s, other 4.47 s: "
            "2393.26 s.",
        ),
        shows="planning",
    ),
    Figure(
        name="fig12",
        title="Figures 12 and 13: plans of Wide-ResNet",
        settings=tuple(WIDE_RESNET[1:4]),
        methods=(OURS,),
        published=(
            "4 GPUs: intra-op only on (1,4).",
            "8 GPUs: 2 x (1,4), as (4,1), then (1,4).",
            "16 GPUs: 5, 4 and 7 blocks on (1,4), (1,4), (1,8); the batch split early, channels "
            "late.",
        ),
        shows="plans",
    ),
    Figure(
        name="large",
        title="Beyond the paper: Llama-70B on 64, GPT-175B on 1,024",
        settings=tuple(LARGE),
        methods=(OURS, ALPA, MEGATRON_NARROW, INTRA, INTER, DATA_PARALLEL, ZERO2, ZERO3),
        published=(
            "Nothing. Megatron-LM's grid is cut to what is plausible: tensor parallel inside a "
            "host, at most 8; the values of B that the others try, too.",
        ),
    ),
)
FIGURES: Mapping[str, Figure] = MappingProxyType({figure.name: figure for figure in _ALL})

# Stages and their submeshes as the paper found them, by setting.
PUBLISHED_PLANS: Mapping[str, str] = MappingProxyType(
    {
        "gpt-350m": "B 512",
        "gpt-1.3b": "2 x (1,2), data parallel; B 128",
        "gpt-2.6b": "(1,2), (1,2), (1,4); B 128",
        "gpt-6.7b": "2 x (1,8) as 2x4; B 64",
        "gpt-15b": "4 x (1,8) as 2x4; B 128",
        "gpt-39b": "16 x (1,4) as 1x4; B 1024",
        "moe-380m": "B 512",
        "moe-1.3b": "B 32",
        "moe-2.4b": "2 x (1,4) as 4x1; B 32",
        "moe-10b": "2 x (1,8) as 8x1; B 16",
        "moe-27b": "8 x (1,4); B 128",
        "moe-70b": "8 x (1,8); B 64",
        "wide-resnet-250m": "B 24",
        "wide-resnet-1b": "(1,4); B 24",
        "wide-resnet-2b": "2 x (1,4), as 4x1, then 1x4; B 24",
        "wide-resnet-4b": "(1,4), (1,4), (1,8); B 32",
    }
)
