"""Paths of arguments as the user writes them."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

import meshwise as mw
from meshwise.plan.spelling import spelled
from meshwise.trace.step import StepSignature, argument_names, open_step

X = jax.ShapeDtypeStruct((8, 8), jnp.float32)


class Moments(NamedTuple):
    mu: Any
    nu: Any


@pytest.mark.parametrize(
    ("state", "names"),
    [
        ({"params": {"emb": X}}, ["state['params']['emb']"]),
        ([{"emb": X}, (X,)], ["state[0]['emb']", "state[1][0]"]),
        (Moments({"a": X}, [X]), ["state.mu['a']", "state.nu[0]"]),
        # Keys that look like an index, or hold separators and quotes.
        ({"0": X, "it's": X}, ["state['0']", 'state["it\'s"]']),
        ({3: {"w": X}}, ["state[3]['w']"]),
        (
            {"mlp/~/linear_0": {"w": X}, "mlp": {"b": X}},
            ["state['mlp']['b']", "state['mlp/~/linear_0']['w']"],
        ),
        ({"a/b": Moments(X, X)}, ["state['a/b'].mu", "state['a/b'].nu"]),
        # As the members of a stack are named.
        ({"w[0]": {"k[1]": X}}, ["state['w[0]']['k[1]']"]),
        (X, ["state"]),
    ],
)  # fmt: skip
def test_a_path_is_what_the_user_writes(state: Any, names: list[str]) -> None:
    def step(state: Any, batch: Any) -> Any:
        return jax.tree.map(lambda x: x + batch.sum(), state)

    signature = StepSignature(
        batch_argnums=(1,),
        batch_dims=0,
        donate_argnums="auto",
        parameters=((0, "state"), (1, "batch")),
    )
    opened = open_step(step, (state, X), {}, signature)
    spelling = dict(opened.spelling)
    found = ["".join(spelled(path, spelling)) for path in opened.names]
    assert found == [*names, "batch"]
    # The name of an argument and keys in brackets are what Python finds the leaf by.
    leaves = jax.tree.leaves(state)
    assert [eval(name, {"state": state}) for name in names] == leaves


def test_arguments_without_a_name_and_by_keyword() -> None:
    signature = StepSignature(batch_argnums=(0,), batch_dims=0, donate_argnums="auto")
    opened = open_step(lambda *args, scale: args[0]["x"] * scale["s"], ({"x": X},),
                       {"scale": {"s": X}}, signature)  # fmt: skip
    assert argument_names((({"x": X},), {"scale": {"s": X}}), signature) == opened.names
    found = ["".join(spelled(path, dict(opened.spelling))) for path in opened.names]
    assert found == ["args[0]['x']", "scale['s']"]


def test_members_of_a_stack_and_plans_that_do_not_say_it() -> None:
    spelling = {"0": "state", "0/blocks": ".blocks"}
    assert spelled("0/blocks/w[3]", spelling) == ("state", ".blocks", "['w']", "[3]")
    assert spelled("0/w[3]", spelling | {"0/w[3]": "['w[3]']"}) == ("state", "['w[3]']")
    assert spelled("0/blocks/w", {}) == ("0/", "blocks/", "w")
    assert spelled("0", {}) == ("0",)


def test_a_plan_keeps_it() -> None:
    def step(params: Any, batch: Any) -> Any:
        return Moments(params.mu + batch.T @ batch, params.nu)

    plan = mw.parallelize(step, cluster=mw.Cluster.virtual("1x p3.8xlarge")).plan(Moments(X, X), X)
    assert plan.spelling == (
        ("0", "params"), ("0/mu", ".mu"), ("0/nu", ".nu"), ("1", "batch"),
    )  # fmt: skip
    text = plan.to_json()
    assert mw.Plan.from_json(text) == plan
    data = json.loads(text)
    del data["spelling"]
    assert mw.Plan.from_json(json.dumps(data)).spelling == ()
