"""Wide-ResNet against closed forms; batch norm against its definition."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshwise.models.sizes.wide_resnet_sizes import forward_flop, wide_resnet_config
from meshwise.models.wide_resnet import MOMENTUM, NORM_EPS, Bottleneck, WideResNet, WideResNetConfig
from models.closed_forms import wide_resnet_parameters
from models.counting import conv_flop, count, dense_flop, random_params

pytestmark = pytest.mark.usefixtures("quick_compile")

TINY = wide_resnet_config("tiny")


def abstract_variables(config: WideResNetConfig) -> Any:
    images = jax.ShapeDtypeStruct((1, config.image_size, config.image_size, 3), jnp.float32)
    init = WideResNet(config).init
    return jax.eval_shape(lambda key, x: init(key, x, train=False), jax.random.key(0), images)


@pytest.mark.parametrize("name", ["tiny", "250M", "13B"])
def test_parameter_count_is_the_formula(name: str) -> None:
    config = wide_resnet_config(name)
    assert count(abstract_variables(config)["params"]) == wide_resnet_parameters(config)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("250M", 0.25), ("1B", 1.0), ("2B", 2.0), ("4B", 4.0), ("6.8B", 6.8), ("13B", 13.0)],
)
def test_a_size_is_what_its_name_says(name: str, billions: float) -> None:
    assert wide_resnet_parameters(wide_resnet_config(name)) / 1e9 == pytest.approx(
        billions, rel=0.05
    )


def test_flop_is_that_of_the_traced_convolutions() -> None:
    variables = abstract_variables(TINY)
    images = jax.ShapeDtypeStruct((2, TINY.image_size, TINY.image_size, 3), jnp.float32)
    model = WideResNet(TINY)
    jaxpr = jax.make_jaxpr(lambda v, x: model.apply(v, x, train=False))(variables, images).jaxpr
    assert conv_flop(jaxpr) + dense_flop(jaxpr) == forward_flop(TINY, 2)


def test_training_norms_by_the_batch_and_moves_the_averages() -> None:
    variables = random_params(abstract_variables(TINY))
    images = np.random.default_rng(0).normal(size=(4, 32, 32, 3)).astype(np.float32)
    model = WideResNet(TINY)
    _, moved = jax.jit(lambda v, x: model.apply(v, x, train=True, mutable=["batch_stats"]))(
        variables, images
    )
    kernel = variables["params"]["conv_stem"]["kernel"]
    stem = jax.lax.conv_general_dilated(
        images, kernel, (2, 2), [(3, 3), (3, 3)], dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    before, after = (v["batch_stats"]["norm_stem"]["mean"] for v in (variables, moved))
    want = MOMENTUM * before + (1 - MOMENTUM) * np.mean(stem, axis=(0, 1, 2))
    np.testing.assert_allclose(after, want, rtol=1e-4, atol=1e-6)
    assert jax.tree.structure(moved["batch_stats"]) == jax.tree.structure(variables["batch_stats"])


def test_a_block_is_its_definition() -> None:
    """1x1 convolutions are products; with the shortcut as identity nothing else is left."""
    block = Bottleneck(TINY, 2, 1, False)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 4, 8)), jnp.float32)
    variables = random_params(jax.eval_shape(block.init, jax.random.key(0), x))
    stats = jax.tree.map(lambda s: jnp.abs(s) + 1.0, variables["batch_stats"])
    variables = {"params": variables["params"], "batch_stats": stats}
    p = variables["params"]

    def norm(name: str, value: Any) -> Any:
        centred = (value - stats[name]["mean"]) / np.sqrt(stats[name]["var"] + NORM_EPS)
        return centred * p[name]["scale"] + p[name]["bias"]

    y = np.maximum(norm("norm_1", x @ p["conv_1"]["kernel"][0, 0]), 0)
    padded = np.pad(y, ((0, 0), (1, 1), (1, 1), (0, 0)))
    kernel = p["conv_2"]["kernel"]
    y = sum(
        padded[:, i : i + 4, j : j + 4] @ np.asarray(kernel[i, j])
        for i in range(3)
        for j in range(3)
    )
    y = np.maximum(norm("norm_2", y), 0)
    want = np.maximum(x + norm("norm_3", y @ p["conv_3"]["kernel"][0, 0]), 0)
    np.testing.assert_allclose(jax.jit(block.apply)(variables, x), want, rtol=1e-4, atol=1e-5)


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="no Wide-ResNet of 20 layers; there are 14, 50, 101, 152"):
        wide_resnet_config("tiny", num_layers=20)
    with pytest.raises(ValueError, match="no Wide-ResNet size '7B'; there are tiny, 250M"):
        wide_resnet_config("7B")


@pytest.mark.parametrize("param_dtype", ["float32", "float64"])
def test_running_averages_keep_their_dtype(param_dtype: str) -> None:
    config = wide_resnet_config("tiny", dtype=param_dtype, param_dtype=param_dtype)
    with jax.enable_x64(True):
        variables = abstract_variables(config)
        images = jax.ShapeDtypeStruct((2, 32, 32, 3), param_dtype)
        model = WideResNet(config)
        _, moved = jax.eval_shape(
            lambda v, x: model.apply(v, x, train=True, mutable=["batch_stats"]), variables, images
        )
    kept = [x.dtype for x in jax.tree.leaves(variables["batch_stats"])]
    assert kept == [x.dtype for x in jax.tree.leaves(moved["batch_stats"])]
    assert {*kept} == {jnp.dtype(param_dtype)}
