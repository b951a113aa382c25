"""Models by name, as `gpt-39b`: a family and one of its sizes."""

from __future__ import annotations

from typing import Any

from meshwise.models import (
    bert_sizes,
    gpt_sizes,
    llama_sizes,
    moe_sizes,
    u_transformer_sizes,
    wide_resnet_sizes,
)
from meshwise.models.steps import Config

_FAMILIES: dict[str, tuple[tuple[str, ...], Any]] = {
    "gpt": (gpt_sizes.SIZE_NAMES, gpt_sizes.gpt_config),
    "bert": (bert_sizes.SIZE_NAMES, bert_sizes.bert_config),
    "llama": (llama_sizes.SIZE_NAMES, llama_sizes.llama_config),
    "moe": (moe_sizes.SIZE_NAMES, moe_sizes.moe_config),
    "wide-resnet": (wide_resnet_sizes.SIZE_NAMES, wide_resnet_sizes.wide_resnet_config),
    "u-transformer": (u_transformer_sizes.SIZE_NAMES, u_transformer_sizes.u_transformer_config),
}

MODEL_NAMES = tuple(
    f"{family}-{size}".lower() for family, (sizes, _) in _FAMILIES.items() for size in sizes
)


def model_config(name: str, **changes: Any) -> Config:
    """The configuration of a model.

    Args:
        name: One of `MODEL_NAMES`, in any case.
        **changes: Fields of its configuration to set otherwise.

    Raises:
        ValueError: there is no such model.
    """
    for family, (sizes, config) in _FAMILIES.items():
        for size in sizes:
            if name.lower() == f"{family}-{size}".lower():
                return config(size, **changes)
    raise ValueError(f"no model {name!r}; there are {', '.join(MODEL_NAMES)}")
