"""Models by name, as `gpt-39b`: a family and one of its sizes."""

from __future__ import annotations

from meshwise.models.sizes.bert_sizes import bert_config
from meshwise.models.sizes.expert_llama_sizes import expert_llama_config
from meshwise.models.sizes.gpt_sizes import gpt_config
from meshwise.models.sizes.llama_sizes import llama_config
from meshwise.models.sizes.moe_sizes import moe_config
from meshwise.models.sizes.u_transformer_sizes import u_transformer_config
from meshwise.models.sizes.wide_resnet_sizes import wide_resnet_config
from meshwise.models.steps import Config

_FAMILIES = {
    "gpt": gpt_config,
    "bert": bert_config,
    "llama": llama_config,
    "moe": moe_config,
    "experts": expert_llama_config,
    "wide-resnet": wide_resnet_config,
    "u-transformer": u_transformer_config,
}
_MODELS = {
    f"{family}-{size}".lower(): (config, size)
    for family, config in _FAMILIES.items()
    for size in config.names
}
MODEL_NAMES = tuple(_MODELS)


def model_config(name: str, **changes: object) -> Config:
    """Return the configuration of a model.

    Args:
        name: One of `MODEL_NAMES`, in any case.
        **changes: Fields of its configuration to set otherwise.

    Returns:
        The configuration.

    Raises:
        ValueError: there is no such model.
    """
    if name.lower() not in _MODELS:
        raise ValueError(f"no model {name!r}; there are {', '.join(MODEL_NAMES)}")
    config, size = _MODELS[name.lower()]
    return config(size, **changes)
