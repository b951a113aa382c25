"""Text from a trained model: held-out bytes, and what the model goes on with."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from meshwise.jax_compat.jaxprs import PyTree
from meshwise.models.steps import language_model
from meshwise.train.corpus import Corpus
from meshwise.train.heldout import on_one_mesh
from meshwise.train.options import TrainOptions

_TEMPERATURE = 0.7
# Of the sequence, given to the model.
_PROMPT_SHARE = 0.3


class Sample(NamedTuple):
    """A text in two parts.

    Attributes:
        prompt: Held-out text.
        text: What the model goes on with.
    """

    prompt: str
    text: str


def sampled(options: TrainOptions, corpus: Corpus, params: PyTree) -> Sample:
    """Draw a text as long as a training sequence, byte by byte.

    The parameters stay as they lie on the devices; those of several meshes are copied to all of
    their devices before, as for the held-out loss.

    Args:
        options: The options of the run; its seed draws.
        corpus: Has the held-out text.
        params: Parameters of the model.
    """
    model, length = language_model(options.config()), options.seq
    given = max(1, round(_PROMPT_SHARE * length))
    (batch,) = corpus.heldout_batches(num_batches=1, batch=1, seq=length)

    def text(params: PyTree, start: jax.Array) -> jax.Array:
        def one_more(place: int, tokens: jax.Array) -> jax.Array:
            logits: PyTree = model.apply({"params": params}, tokens)
            last = logits[0, place - 1].astype(jnp.float32) / _TEMPERATURE
            key = jax.random.fold_in(jax.random.key(options.seed), place)
            return tokens.at[0, place].set(jax.random.categorical(key, last).astype(tokens.dtype))

        # Causal: what stands behind the place does not matter.
        return jax.lax.fori_loop(given, length, one_more, start)

    tokens = np.asarray(jax.jit(text)(on_one_mesh(params), batch["x"]))[0].astype(np.uint8)
    return Sample(_decoded(tokens[:given]), _decoded(tokens[given:]))


def _decoded(tokens: np.ndarray) -> str:
    return tokens.tobytes().decode("utf-8", errors="replace")
