"""A Llama of experts against closed forms and against every expert on every token."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshwise.models.expert_llama import ExpertLlama, ExpertLlamaConfig, Experts
from meshwise.models.sizes.expert_llama_sizes import expert_llama_config
from models.closed_forms import expert_llama_parameters
from models.counting import count, random_params

pytestmark = pytest.mark.usefixtures("quick_compile")


def config_of(**changes: Any) -> ExpertLlamaConfig:
    return expert_llama_config("tiny", dtype="float32", param_dtype="float32", **changes)


@pytest.mark.parametrize(
    ("name", "billions"), [("mixtral-8x7B", 46.7), ("llama-4-scout", 107.8), ("deepseek-v3", 699.5)]
)
def test_a_size_is_what_its_name_says(name: str, billions: float) -> None:
    """DeepSeek-V3 has 671: its first three layers are dense, its attention is latent."""
    config = expert_llama_config(name)
    assert expert_llama_parameters(config) / 1e9 == pytest.approx(billions, rel=0.002)


def test_parameter_count_is_the_formula() -> None:
    config = config_of()
    tokens = jax.ShapeDtypeStruct((1, 16), jnp.int32)
    params = jax.eval_shape(ExpertLlama(config).init, jax.random.key(0), tokens)["params"]
    assert count(params) == expert_llama_parameters(config)


def by_every_expert(config: ExpertLlamaConfig, params: Any, x: jax.Array) -> jax.Array:
    """All experts take all tokens; what was not chosen has no weight."""
    scores = x @ params["router"]["kernel"]
    least_chosen = jnp.sort(scores, axis=-1)[..., -config.experts_per_token, None]
    is_chosen = scores >= least_chosen
    if config.gate == "softmax":
        weights = jax.nn.softmax(jnp.where(is_chosen, scores, -jnp.inf), axis=-1)
    else:
        weights = jnp.where(is_chosen, jax.nn.sigmoid(scores), 0)
        if config.experts_per_token > 1:
            weights = weights / weights.sum(axis=-1, keepdims=True)
    inner = jax.nn.silu(jnp.einsum("bsh,ehf->bsef", x, params["gate"]))
    inner = inner * jnp.einsum("bsh,ehf->bsef", x, params["up"])
    mixed = jnp.einsum("bsef,efh,bse->bsh", inner, params["down"], weights)
    if config.shared_ffn:
        shared = {name: value["kernel"] for name, value in params["shared"].items()}
        mixed += (jax.nn.silu(x @ shared["gate"]) * (x @ shared["up"])) @ shared["down"]
    return mixed


@pytest.mark.parametrize("chosen", [1, 3])
@pytest.mark.parametrize("gate", ["softmax", "sigmoid"])
def test_no_token_is_dropped(gate: str, chosen: int) -> None:
    config = config_of(gate=gate, experts_per_token=chosen, shared_ffn=8 * (chosen - 1))
    module = Experts(config)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 16, config.hidden)), jnp.float32)
    params = random_params(jax.eval_shape(module.init, jax.random.key(0), x)["params"])
    # Nearly all tokens go to one expert, some to none of the others.
    params["router"]["kernel"] = params["router"]["kernel"].at[:, 0].add(0.1)

    def loss(run: Any) -> Any:
        return jax.value_and_grad(lambda p, x: (run(p, x) ** 2).sum(), (0, 1))

    found = loss(lambda p, x: module.apply({"params": p}, x))(params, x)
    wanted = loss(lambda p, x: by_every_expert(config, p, x))(params, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5), found, wanted)


def test_a_token_cannot_go_to_more_experts_than_there_are() -> None:
    with pytest.raises(ValueError, match="a token cannot go to 9 of 8 experts"):
        config_of(experts_per_token=9)
