"""`--config`: fields of a model's configuration from the command line."""

from __future__ import annotations

import click
import jax
import jax.numpy as jnp
import pytest
from click.testing import CliRunner

from doubles import own_steps
from meshwise.cli import main
from meshwise.cli.steps import chosen_step


def test_fields_of_the_model_are_changed() -> None:
    changes = ("seq_len=64", "param_dtype=bfloat16", "num_layers=3", "scan_layers=true")
    _, state, batch = chosen_step("llama-tiny", None, 4, "bfloat16", changes)
    assert {leaf.shape[:2] for leaf in jax.tree.leaves(batch)} == {(4, 64)}
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(state[0])}
    assert dtypes == {jnp.dtype("bfloat16")}
    assert any(leaf.shape[0] == 3 for leaf in jax.tree.leaves(state[0]))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("sequence=64", "no field 'sequence'; there are "),
        ("seq_len=long", "'long' is no int, as "),
        ("seq_len", "'' is no int"),
        ("scan_layers=yes", "scan_layers is true or false"),
        ("num_kv_heads=3", "3 kv heads do not divide"),
    ],
)
def test_a_wrong_change_is_refused(change: str, text: str) -> None:
    with pytest.raises(click.UsageError, match="--model llama-tiny") as caught:
        chosen_step("llama-tiny", None, 4, "float16", (change,))
    assert text in str(caught.value)


def test_a_step_of_ones_own_has_no_configuration() -> None:
    with pytest.raises(click.UsageError, match="--config changes a --model"):
        chosen_step(None, "module:make", None, "float16", ("seq_len=64",))
    with pytest.raises(click.UsageError, match="--batch is for a --model"):
        chosen_step(None, "module:make", 4, "float16")


def test_a_step_that_can_be_trained_can_be_planned() -> None:
    step, state, batch = chosen_step(None, "doubles.own_steps:made", None, "float32")
    assert step.__name__ == own_steps.step.__name__
    assert [leaf.shape for leaf in jax.tree.leaves((state["weights"], batch))] == [
        *[(own_steps.WIDTH, own_steps.WIDTH)] * own_steps.LAYERS,
        *[(own_steps.ROWS, own_steps.WIDTH)] * 2,
    ]
    with pytest.raises(click.UsageError, match=r"--step .*:two: it must return"):
        chosen_step(None, "doubles.own_steps:two", None, "float32")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("only_state", "the step must return (state, loss), and returns dict"),
        ("other_dtype", "state['opt'][0].count is int32[] before, bfloat16[] after"),
        ("loss_of_each_row", "the loss must be a real scalar, and is float32[16]"),
    ],
)
def test_a_step_that_cannot_be_trained_is_not_planned(name: str, message: str) -> None:
    arguments = ["plan", "--step", f"doubles.own_steps:{name}", "--cluster", "2 cpu"]
    found = CliRunner().invoke(main, arguments)
    assert found.exit_code == 1
    assert f"Error: --step doubles.own_steps:{name}: " in found.output
    assert message in found.output
