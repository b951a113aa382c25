"""The shardings by hand, and the numbers of a row."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.compiler_report import report
from benchmarks.hand_shardings import (
    ACTIVATIONS,
    PARAMETERS,
    Recipe,
    fsdp,
    fsdp_tensor,
    hand_jit,
    megatron,
    spec,
    state_specs,
)
from benchmarks.third_party import CASES, PLACES, hand_ways
from benchmarks.third_party_page import page
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwise.cluster.cpu import cpu_cluster
from meshwise.models.named import model_config
from meshwise.models.steps import model_step
from meshwise.runtime.device_memory import CompiledBytes, reported_bytes
from meshwise.targets.child import CompileAnswer


def paths(state: Any) -> set[str]:
    found, _ = jax.tree_util.tree_flatten_with_path(state)
    names = ("/".join(k.key for k in p if isinstance(k, jax.tree_util.DictKey)) for p, _ in found)
    return {name for name in names if name}


def mesh_of(recipe: Recipe) -> Mesh:
    return Mesh(np.asarray(jax.devices()[:8]).reshape(recipe.sizes), recipe.names)


@pytest.mark.parametrize(
    ("name", "place"), [*((name, "h100") for name in CASES), ("gpt-350m", "v5e-16")]
)
def test_the_table_of_a_model_names_the_dims_of_every_parameter(name: str, place: str) -> None:
    case = CASES[name]
    state = model_step(case.config, case.rows).state
    for recipe in hand_ways(PLACES[place]).values():
        sizes = dict(recipe.axes)

        def check(leaf: Any, entry: PartitionSpec, sizes: dict[str, int] = sizes) -> None:
            assert len(entry) == leaf.ndim
            for size, axis in zip(leaf.shape, entry, strict=True):
                assert size % sizes.get(str(axis), 1) == 0

        jax.tree.map(check, state, state_specs(case.config, state, recipe))


@pytest.mark.parametrize("name", ["gpt-tiny", "llama-tiny", "moe-tiny"])
def test_no_row_of_a_table_is_for_nothing(name: str) -> None:
    config = model_config(name)
    known = paths(model_step(config, 8).state)
    table = PARAMETERS[type(config)]
    assert not [row for row in table if not any(fnmatchcase(path, row) for path in known)]


def test_an_unknown_parameter_is_an_error() -> None:
    config = model_config("gpt-tiny")
    with pytest.raises(KeyError, match=r"PARAMETERS\[GptConfig\] is for block_0/new"):
        state_specs(config, {"block_0": {"new": jnp.zeros(3)}}, fsdp(8))


def test_an_axis_splits_one_dim() -> None:
    axis_of = {"embed": "fsdp", "mlp": "fsdp"}
    assert spec(("expert", "embed", "mlp"), axis_of) == PartitionSpec(None, "fsdp", None)


@pytest.mark.parametrize(
    ("name", "changes", "recipe"),
    [
        ("gpt-tiny", {}, megatron(2, 4, by_sequence=True)),
        ("llama-tiny", {"num_kv_heads": 4}, fsdp_tensor(2, 4)),
        ("moe-tiny", {}, fsdp(8)),
    ],
)
def test_a_step_by_hand_is_the_same_step(
    name: str, changes: dict[str, Any], recipe: Recipe
) -> None:
    config = model_config(name, num_layers=1, **changes)
    parts = model_step(config, 8)
    rng = np.random.default_rng(0)
    batch = jax.tree.map(
        lambda x: rng.integers(config.vocab_size, size=x.shape, dtype=x.dtype), parts.batch
    )
    state = jax.jit(parts.create)(jax.random.key(0))
    _, expected = jax.jit(parts.step)(state, batch)
    _, loss = hand_jit(config, parts, recipe, mesh_of(recipe))(state, batch)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_results_of_modules_are_constrained() -> None:
    config = model_config("llama-tiny", num_kv_heads=4)
    parts = model_step(config, 8)
    step = hand_jit(config, parts, fsdp_tensor(2, 4))
    text = str(step.trace(parts.state, parts.batch).jaxpr)
    # For each of the two blocks its result, two norms, attention, MLP, three projections to heads
    # and two inside the MLP; the embedding, the last norm and the logits.  The loss stands there as
    # it is and on whole arrays, where a constraint stays one.
    assert text.count("sharding_constraint[") == 2 * (2 * 10 + 3)
    assert len(ACTIVATIONS) == 14


def read(function: Any, shapes: list[Any], specs: list[PartitionSpec]) -> dict[str, Any]:
    """A row of a function that XLA:CPU compiles for 8 devices."""
    mesh = Mesh(np.asarray(jax.devices()[:8]).reshape(2, 4), ("a", "b"))
    placed = [NamedSharding(mesh, entry) for entry in specs]
    whole = NamedSharding(mesh, PartitionSpec())
    compiled = jax.jit(function, in_shardings=placed, out_shardings=whole).lower(*shapes).compile()
    said = CompileAnswer(
        memory=reported_bytes(compiled.memory_analysis()), text=compiled.as_text(), seconds=0.0
    )
    return report(said, cpu_cluster(8).mesh((2, 4), ("a", "b")))


def test_sums_of_a_compiled_program() -> None:
    x, w = jax.ShapeDtypeStruct((16, 32), jnp.float32), jax.ShapeDtypeStruct((32, 8), jnp.float32)
    row = read(jnp.dot, [x, w], [PartitionSpec(None, "b"), PartitionSpec("b", None)])
    # Each device multiplies 8 of the 32 rows; 16 x 8 numbers are summed over 4 devices.
    assert row["dense_flop"] == 2 * 16 * 8 * 8
    assert row["argument_bytes"] == 4 * (16 * 8 + 8 * 8)
    assert row["output_bytes"] == 4 * 16 * 8
    assert row["peak_bytes"] == (
        row["argument_bytes"] + row["output_bytes"] - row["alias_bytes"] + row["temporary_bytes"]
    )
    (kind,) = row["collectives"]
    assert kind == "all-reduce"
    sums = row["collectives"][kind]
    assert (sums["number"], sums["runs"], sums["num_bytes"]) == (1, 1, 4 * 16 * 8)
    assert sums["sent_bytes"] == 2 * 3 / 4 * 4 * 16 * 8
    assert sums["simulated_s"] > 0
    assert row["estimated_cycles"] == row["num_estimated"] == 0


def test_what_a_loop_repeats_counts_each_time() -> None:
    x, w = jax.ShapeDtypeStruct((16, 32), jnp.float32), jax.ShapeDtypeStruct((32, 32), jnp.float32)

    def five_times(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 5, lambda _, x: jnp.tanh(x @ w), x)

    row = read(five_times, [x, w], [PartitionSpec(), PartitionSpec("b", None)])
    assert row["dense_flop"] == 5 * 2 * 16 * 8 * 32
    sums = row["collectives"]["all-reduce"]
    assert (sums["number"], sums["runs"], sums["num_bytes"]) == (1, 5, 5 * 4 * 16 * 32)


def test_cycles_that_xla_tpu_writes_are_summed() -> None:
    config = 'backend_config={"window_config":{"estimated_cycles":"%d"}}'
    text = f"""HloModule m, num_partitions=8

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %p = (s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %x = f32[8] get-tuple-element(%p), index=1
  %y = f32[8] negate(%x), {config % 10}
  ROOT %t = (s32[], f32[8]) tuple(%next, %y)
}}

%condition (p: (s32[], f32[8])) -> pred[] {{
  %p = (s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %limit = s32[] constant(4)
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}}

ENTRY %main (x: f32[8]) -> f32[8] {{
  %x = f32[8] parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[8]) tuple(%zero, %x)
  %loop = (s32[], f32[8]) while(%start), condition=%condition, body=%body
  %y = f32[8] get-tuple-element(%loop), index=1
  ROOT %z = f32[8] copy(%y), {config % 7}
}}
"""
    memory = CompiledBytes(argument_bytes=0, output_bytes=0, alias_bytes=0, temporary_bytes=0)
    said = CompileAnswer(memory=memory, text=text, seconds=0.0)
    row = report(said, cpu_cluster(8).mesh((8,)))
    assert (row["estimated_cycles"], row["num_estimated"]) == (4 * 10 + 7, 2)
    assert row["dense_flop"] is None


def test_the_page_has_a_row_for_each_way_and_for_each_refusal() -> None:
    x = jax.ShapeDtypeStruct((16, 32), jnp.float32)
    numbers = read(lambda x: x.sum(0), [x], [PartitionSpec("a")])
    same = {"case": "gpt-350m", "place": "h100", "side": "hand", "mesh": (2, 4)}
    ours = {**same, "side": "Meshwise", "way": "Zero3()", **numbers}
    text = page(
        [{**same, "way": "FSDP", **numbers}, {**same, "way": "other", "error": "E: why"}, ours]
    )
    assert "| gpt-350m | h100 | Zero3() | 1.000 (FSDP) | 1.000 (FSDP) |" in text
    assert "### gpt-350m, h100" in text
    assert "| hand | FSDP | 2x4 |" in text
    assert "| hand | other | E |" in text
