"""The built-in models on text: what a run trains without a step of the user's own."""

from __future__ import annotations

from functools import partial

import jax

from meshwise.models.sizes.gpt_sizes import gpt_config
from meshwise.trace.step import abstract
from meshwise.train.corpus import load_corpus
from meshwise.train.options import TrainOptions
from meshwise.train.step import num_parameters, state_creator, train_step_of
from meshwise.train.training import Training
from meshwise.units import bytes_text, counted


def text_training(options: TrainOptions) -> Training:
    """Return the training of a model by its name, on bytes of text.

    Args:
        options: Model, text, sizes and seed.

    Raises:
        MeshwiseError: there is no text, or too little of it.
    """
    model = options.model
    corpus = load_corpus(options.text, seq=options.seq)
    batch = partial(corpus.batch_at, batch=options.batch, seq=options.seq, seed=options.seed)
    create, key = state_creator(options), jax.random.key(options.seed)
    state = jax.eval_shape(create, key)
    return Training(
        name=f"GPT {model}" if model in gpt_config.names else model,
        about=(
            f"{num_parameters(state):,} parameters on {corpus.name}: "
            f"{counted(corpus.num_files, 'file')}, {bytes_text(len(corpus.train))} to learn from, "
            f"{bytes_text(len(corpus.heldout))} held out"
        ),
        amount=f"{options.batch} x {options.seq} bytes",
        step=train_step_of(options),
        create=create,
        seed=key,
        batch=batch,
        loss=lambda result: result,
        shapes=(state, jax.tree.map(abstract, batch(0))),
        num_units=options.batch * options.seq,
        unit="tokens",
        identity={**options.identity(), "text": corpus.fingerprint},
        corpus=corpus,
    )
