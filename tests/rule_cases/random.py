"""Random bits and keys."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from rule_cases.case import Case

_KEY = jax.random.key(3)
_KEYS = jax.random.split(_KEY, 8)

CASES = (
    *(
        Case("random_bits", f"{d.__name__}", lambda k, d=d: jax.random.bits(k, (8,), d), (_KEY,))
        for d in (jnp.uint8, jnp.uint16, jnp.uint32)
    ),
    Case(
        "random_bits", "uint64", lambda k: jax.random.bits(k, (8,), jnp.uint64), (_KEY,), x64=True
    ),
    Case(
        "random_bits",
        "uint32 in x64",
        lambda k: jax.random.bits(k, (8,), jnp.uint32),
        (_KEY,),
        x64=True,
    ),
    Case("random_bits", "batched keys", jax.vmap(lambda k: jax.random.bits(k, (4,))), (_KEYS,)),
    Case("random_bits", "scalar", jax.random.bits, (_KEY,)),
    Case("random_bits", "size 0", lambda k: jax.random.bits(k, (8, 0)), (_KEY,)),
    Case("random_bits", "odd size", lambda k: jax.random.bits(k, (3, 8, 1)), (_KEY,)),
    Case("random_bits", "in normal", lambda k: jax.random.normal(k, (8,)), (_KEY,)),
    Case("random_split", "one key", lambda k: jax.random.split(k, 8), (_KEY,)),
    Case("random_split", "keys", jax.vmap(lambda k: jax.random.split(k, 3)), (_KEYS,)),
    Case("random_fold_in", "one key", jax.random.fold_in, (_KEY, np.uint32(7))),
    Case(
        "random_fold_in",
        "keys",
        jax.vmap(jax.random.fold_in),
        (_KEYS, np.arange(8, dtype=np.uint32)),
    ),
    Case("random_wrap", "keys", jax.random.wrap_key_data, (jax.random.key_data(_KEYS),)),
    Case("random_unwrap", "keys", jax.random.key_data, (_KEYS,)),
    Case("random_clone", "keys", jax.random.clone, (_KEYS,)),
    Case("random_seed", "scalar", jax.random.key, (np.uint32(4),)),
    Case("random_seed", "batch", jax.vmap(jax.random.key), (np.arange(8, dtype=np.uint32),)),
    Case(
        "random_gamma",
        "array",
        lambda k: jax.random.gamma(k, jnp.ones((4,))),
        (_KEY,),
        1e-5,
        costly=True,
    ),
    Case(
        "random_gamma",
        "keys",
        jax.vmap(lambda k: jax.random.gamma(k, jnp.ones((2,)))),
        (_KEYS,),
        1e-5,
        costly=True,
    ),
)

_RBG = jax.random.key(3, impl="rbg")
ON_DEVICES = (
    Case("random_bits", "rbg", lambda k: jax.random.bits(k, (8, 4)), (_RBG,)),
    Case("random_bits", "rbg, batched", jax.vmap(jax.random.bits), (jax.random.split(_RBG, 8),)),
    Case("random_split", "rbg", lambda k: jax.random.split(k, 8), (_RBG,)),
)
