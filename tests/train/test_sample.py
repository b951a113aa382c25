"""The text of a trained model: drawn as one byte after the other, wherever the parameters lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwise.models.steps import language_model
from meshwise.train.corpus import Corpus, corpus_of
from meshwise.train.options import TrainOptions
from meshwise.train.sample import Sample, sampled

FILES = [(f"{i}.py", f"text of file {i} ".encode() * 9) for i in range(64)]
SEQ = 20

pytestmark = pytest.mark.usefixtures("one_layer")


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return corpus_of("x", FILES, seq=SEQ)


def options_of(model: str) -> TrainOptions:
    return TrainOptions(out=Path("unused"), model=model, seq=SEQ, batch=4, seed=3)


def params_of(options: TrainOptions) -> Any:
    model = language_model(options.config())
    return model.init(jax.random.key(0), jnp.zeros((1, SEQ), jnp.int32))["params"]


def byte_by_byte(options: TrainOptions, corpus: Corpus, params: Any) -> Sample:
    (batch,) = corpus.heldout_batches(num_batches=1, batch=1, seq=SEQ)
    tokens = batch["x"][0, :6].tolist()
    for place in range(6, SEQ):
        whole = jnp.asarray([tokens + [0] * (SEQ - place)])
        logits: Any = language_model(options.config()).apply({"params": params}, whole)
        key = jax.random.fold_in(jax.random.key(options.seed), place)
        tokens.append(int(jax.random.categorical(key, logits[0, place - 1] / 0.7)))
    parts = (bytes(tokens[:6]), bytes(tokens[6:]))
    return Sample(*(part.decode("utf-8", errors="replace") for part in parts))


@pytest.mark.parametrize("model", ["tiny", "llama-tiny"])
def test_a_text_is_drawn_byte_by_byte(model: str, corpus: Corpus) -> None:
    options = options_of(model)
    params = params_of(options)
    found = sampled(options, corpus, params)
    assert found == byte_by_byte(options, corpus, params)
    assert found.prompt.encode() in corpus.heldout.tobytes()


def test_the_text_is_the_same_wherever_the_parameters_lie(corpus: Corpus) -> None:
    options = options_of("tiny")
    params = params_of(options)
    devices = np.asarray(jax.devices()[:4])
    meshes = [Mesh(part, ("x",)) for part in np.split(devices, 2)]
    split = NamedSharding(meshes[0], PartitionSpec("x"))
    leaves, tree = jax.tree.flatten(params)
    halves = [NamedSharding(meshes[k % 2], PartitionSpec()) for k in range(len(leaves))]
    whole = sampled(options, corpus, params)
    for where in ([split] * len(leaves), halves):
        placed = jax.tree.unflatten(tree, map(jax.device_put, leaves, where))
        assert sampled(options, corpus, placed) == whole
