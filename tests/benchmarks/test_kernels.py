"""What kernels of a compiled program read and write."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.hand_accumulation import hand_written_step
from benchmarks.kernels import kernels

from meshwise.models.sizes.gpt_sizes import gpt_config
from meshwise.models.steps import model_step
from meshwise.runtime.hlo.module import parse_module

pytestmark = pytest.mark.usefixtures("quick_compile")

TEXT = """\
HloModule step, is_scheduled=true

%sliced (p0: f32[4,8], p1: s32[], p2: f32[8]) -> (f32[8], f32[]) {
  %p0 = f32[4,8]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  %row = f32[1,8]{1,0} dynamic-slice(%p0, %p1, %zero), dynamic_slice_sizes={1,8}
  %flat = f32[8]{0} bitcast(%row)
  %p2 = f32[8]{0} parameter(2)
  %sum = f32[8]{0} add(%flat, %p2)
  %nought = f32[] constant(0)
  %total = f32[] reduce(%sum, %nought), dimensions={0}, to_apply=%adder
  ROOT %both = (f32[8]{0}, f32[]) tuple(%sum, %total)
}

%adder (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

%updated (q0: f32[4,8], q1: f32[1,8], q2: s32[]) -> f32[4,8] {
  %q0 = f32[4,8]{1,0} parameter(0)
  %q1 = f32[1,8]{1,0} parameter(1)
  %q2 = s32[] parameter(2)
  %none = s32[] constant(0)
  ROOT %new = f32[4,8]{1,0} dynamic-update-slice(%q0, %q1, %q2, %none)
}

%body (state: (s32[], f32[4,8], f32[8,8])) -> (s32[], f32[4,8], f32[8,8]) {
  %state = (s32[], f32[4,8]{1,0}, f32[8,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %x = f32[4,8]{1,0} get-tuple-element(%state), index=1
  %w = f32[8,8]{1,0} get-tuple-element(%state), index=2
  %product = (f32[4,8]{1,0}, s8[1024]{0}) custom-call(%x, %w), PRODUCT
  %y = f32[4,8]{1,0} get-tuple-element(%product), index=0
  %rows = f32[1,8]{1,0} dynamic-slice(%y, %i, %i), dynamic_slice_sizes={1,8}
  %one = f32[8]{0} bitcast(%rows)
  %sums = (f32[8]{0}, f32[]) fusion(%x, %i, %one), kind=kInput, calls=%sliced
  %z = f32[4,8]{1,0} fusion(%y, %rows, %i), kind=kLoop, calls=%updated
  %copied = f32[4,8]{1,0} copy(%z)
  ROOT %next = (s32[], f32[4,8]{1,0}, f32[8,8]{1,0}) tuple(%i, %copied, %w)
}

%condition (given: (s32[], f32[4,8], f32[8,8])) -> pred[] {
  %given = (s32[], f32[4,8]{1,0}, f32[8,8]{1,0}) parameter(0)
  ROOT %going = pred[] constant(true)
}

ENTRY %main (arg: (s32[], f32[4,8], f32[8,8])) -> (s32[], f32[4,8], f32[8,8]) {
  %arg = (s32[], f32[4,8]{1,0}, f32[8,8]{1,0}) parameter(0)
  ROOT %loop = (s32[], f32[4,8]{1,0}, f32[8,8]{1,0}) while(%arg), LOOP
}
"""

PRODUCT = (
    'custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":'
    '{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],'
    '"rhs_contracting_dimensions":["0"]}}}'
)
LOOP = 'condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"3"}}'


def test_slices_updates_and_products_count_what_they_move():
    found = {
        item.value.name: item
        for item in kernels(parse_module(TEXT.replace("PRODUCT", PRODUCT).replace("LOOP", LOOP)))
    }
    assert {item.count for item in found.values()} == {3}
    assert all(item.value.is_in_loop for item in found.values())
    kinds = {name: (item.value.kind, item.value.num_bytes) for name, item in found.items()}
    assert kinds == {
        "product": ("product", 4 * (32 + 64 + 32)),  # The scratch memory is not read.
        "rows": ("dynamic-slice", 2 * 4 * 8),
        "sums": ("reduction", 4 * (8 + 1 + 8) + 4 * (8 + 1)),
        "z": ("element-wise", 4 * (8 + 1) + 4 * 8),
        "copied": ("copy", 2 * 4 * 32),
    }
    assert found["product"].value.flop == 2 * 4 * 8 * 8


def test_gradients_of_micro_batches_add_up_to_those_of_the_batch():
    """Written by hand as well: the mean loss of a GPT separates."""
    config, rows = gpt_config("tiny"), 4
    parts = model_step(config, rows)
    tokens = np.random.default_rng(0).integers(config.vocab_size, size=(rows, config.seq_len))
    batch = {"x": jnp.asarray(tokens), "y": jnp.asarray(tokens)}
    state = parts.create(jax.random.key(0))
    want = jax.jit(parts.step)(state, batch)
    got = jax.jit(hand_written_step(config, rows, 2))(state, batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5), want, got)
