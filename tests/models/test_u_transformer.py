"""The U-Transformer against closed forms; what reaches what."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshwise.models.sizes.u_transformer_sizes import u_transformer_config
from meshwise.models.u_transformer import UTransformer, UTransformerConfig, time_features
from models.closed_forms import u_transformer_parameters
from models.counting import count, random_params

pytestmark = pytest.mark.usefixtures("quick_compile")

TINY = u_transformer_config("tiny")


def inputs(config: UTransformerConfig, batch: int) -> Any:
    shape = (batch, config.image_size, config.image_size, config.in_channels)
    return (
        jax.ShapeDtypeStruct(shape, jnp.float32),
        jax.ShapeDtypeStruct((batch,), jnp.float32),
        jax.ShapeDtypeStruct((batch, *config.context_shape), jnp.float32),
    )


def abstract_params(config: UTransformerConfig) -> Any:
    return jax.eval_shape(UTransformer(config).init, jax.random.key(0), *inputs(config, 1))


@pytest.mark.parametrize("name", ["tiny", "470M"])
def test_parameter_count_is_the_formula(name: str) -> None:
    config = u_transformer_config(name)
    assert count(abstract_params(config)) == u_transformer_parameters(config)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("470M", 0.471), ("1B", 1.06), ("1.2B", 1.206), ("1.8B", 1.884), ("2B", 2.077)],
)
def test_a_size_is_what_its_name_says(name: str, billions: float) -> None:
    assert u_transformer_parameters(u_transformer_config(name)) / 1e9 == pytest.approx(
        billions, rel=0.01
    )


def test_noise_depends_on_image_time_and_context_and_on_no_other_row() -> None:
    rng = np.random.default_rng(0)
    params = random_params(abstract_params(TINY))
    latents, steps, context = (
        jnp.asarray(rng.normal(size=spec.shape), spec.dtype) for spec in inputs(TINY, 2)
    )
    apply = jax.jit(UTransformer(TINY).apply)
    before = apply(params, latents, steps, context)
    assert before.shape == (2, TINY.image_size, TINY.image_size, TINY.out_channels)
    for changed in (
        (latents.at[0].add(1.0), steps, context),
        (latents, steps.at[0].add(1.0), context),
        (latents, steps, context.at[0, 1].add(1.0)),
    ):
        after = apply(params, *changed)
        assert not np.allclose(before[0], after[0], atol=1e-4)
        np.testing.assert_array_equal(before[1], after[1])


def test_time_features_turn_at_falling_rates() -> None:
    steps = jnp.asarray([0.0, 3.0])
    got = time_features(steps, 8)
    rates = 10_000.0 ** (-np.arange(4) / 4)
    want = np.concatenate([np.cos(steps[:, None] * rates), np.sin(steps[:, None] * rates)], -1)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_heads": 3}, "num_heads=3 does not divide 16 channels"),
        ({"num_groups": 5}, "num_groups=5 does not divide 16 channels"),
        ({"image_size": 10}, "an image of 10 cannot be halved 2 times"),
    ],
)
def test_what_must_divide(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        u_transformer_config("tiny", **changes)


def test_unknown_size_lists_the_sizes() -> None:
    with pytest.raises(ValueError, match="no U-Transformer size '7B'; there are tiny, 470M"):
        u_transformer_config("7B")
