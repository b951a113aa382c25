"""The example of the README runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest

from meshwise.models.losses import mean_cross_entropy

README = Path(__file__).resolve().parents[2] / "README.md"


@pytest.mark.usefixtures("quick_compile")
def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    found = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    model, tx = nn.Dense(4), optax.adam(0.1)
    batch = {"x": jnp.ones((8, 3)), "y": jnp.zeros((8,), jnp.int32)}

    def create_state(key: Any) -> Any:
        params = model.init(key, batch["x"])["params"]
        return params, tx.init(params)

    names = {
        "model": model,
        "tx": tx,
        "cross_entropy": mean_cross_entropy,
        "create_state": create_state,
        "batch": batch,
        "batches": [batch] * 3,
    }
    exec(found[1], names)
    assert float(names["loss"]) < float(mean_cross_entropy(jnp.zeros((8, 4)), batch["y"]))
    assert isinstance(jax.tree.leaves(names["state"])[0], jax.Array)
    assert capsys.readouterr().out
