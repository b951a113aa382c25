"""What compilers made of collectives, in texts as jax-cuda12-pjrt 0.10.2 and libtpu 0.0.42.1 print
them, shortened.
"""

from __future__ import annotations

import pytest

from meshwise.cluster.mesh import DeviceSpec
from meshwise.runtime.hlo.beside import Place, async_collectives
from meshwise.runtime.hlo.collectives import HloCollective, hlo_collectives
from meshwise.runtime.hlo.module import Module, parse_module
from meshwise.runtime.hlo.seconds import Seconds

EIGHT = "replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true"


def config(is_sync: str) -> str:
    return (
        'backend_config={"operation_queue_id":"0","collective_backend_config":{'
        f'"is_sync":{is_sync},"is_pipelined":false,"backend":"DEFAULT"}},'
        '"force_earliest_schedule":false,"reification_cost":[]}'
    )


# Of a GPT under DataParallel: three gradients are written into one array, and summed beside a
# transpose.  A reduce-scatter of IntraOp, which is awaited at once.
GPU = f"""HloModule jit_step, is_scheduled=true, num_partitions=8

%region_113.0 (a: bf16[], b: bf16[]) -> bf16[] {{
  %a = bf16[] parameter(0)
  %b = bf16[] parameter(1)
  ROOT %sum = bf16[] add(%a, %b)
}}

%wrapped_concatenate_computation.1 (p.0: bf16[1024], p.1: bf16[1024], p.2: bf16[1024]) -> \
bf16[3072] {{
  %p.0 = bf16[1024]{{0}} parameter(0)
  %p.1 = bf16[1024]{{0}} parameter(1)
  %p.2 = bf16[1024]{{0}} parameter(2)
  ROOT %concatenate.41 = bf16[3072]{{0}} concatenate(%p.0, %p.1, %p.2), dimensions={{0}}
}}

%fused_transpose.38 (param_0.5: bf16[4,1024,1024]) -> bf16[4,1024,1024] {{
  %param_0.5 = bf16[4,1024,1024]{{2,1,0}} parameter(0)
  ROOT %transpose.5 = bf16[4,1024,1024]{{2,1,0}} transpose(%param_0.5), dimensions={{0,2,1}}
}}

ENTRY %main (a.1: bf16[1024], b.1: bf16[1024], c.1: bf16[1024], x: bf16[4,1024,1024]) -> \
(bf16[3072], bf16[4,1024,1024], bf16[1,1024,256]) {{
  %a.1 = bf16[1024]{{0}} parameter(0)
  %b.1 = bf16[1024]{{0}} parameter(1)
  %c.1 = bf16[1024]{{0}} parameter(2)
  %x = bf16[4,1024,1024]{{2,1,0}} parameter(3)
  %wrapped_concatenate.1 = bf16[3072]{{0}} fusion(%a.1, %b.1, %c.1), kind=kLoop, \
calls=%wrapped_concatenate_computation.1
  %all-reduce-start.2 = bf16[3072]{{0}} all-reduce-start(%wrapped_concatenate.1), channel_id=1, \
{EIGHT}, to_apply=%region_113.0, {config("false")}
  %loop_transpose_fusion.9 = bf16[4,1024,1024]{{2,1,0}} fusion(%x), kind=kLoop, \
calls=%fused_transpose.38
  %all-reduce-done.2 = bf16[3072]{{0}} all-reduce-done(%all-reduce-start.2)
  %bitcast.9 = bf16[8,1024,512]{{2,1,0}} bitcast(%loop_transpose_fusion.9)
  %reduce-scatter-start = ((bf16[8,1024,512]{{2,1,0}}), bf16[1,1024,512]{{2,1,0}}) \
reduce-scatter-start(%bitcast.9), channel_id=1, {EIGHT}, dimensions={{0}}, \
to_apply=%region_113.0, {config("true")}
  %partition-id = u32[] partition-id()
  %reduce-scatter-done = bf16[1,1024,512]{{2,1,0}} reduce-scatter-done(%reduce-scatter-start)
  ROOT %tuple = (bf16[3072]{{0}}, bf16[4,1024,1024]{{2,1,0}}, bf16[1,1024,512]{{2,1,0}}) \
tuple(%all-reduce-done.2, %loop_transpose_fusion.9, %reduce-scatter-done)
}}
"""

GATHER = (
    "channel_id=13, replica_groups=mesh['axis_0'=1,'axis_1'=8] {'axis_1'}, dimensions={1}, "
    'use_global_device_ids=true, frontend_attributes={chain_id="1"}'
)


def cycles(number: int) -> str:
    return f'backend_config={{"window_config":{{"estimated_cycles":"{number}"}}}}'


# An all-gather in a chain of three fusions, one of which has a product.
TPU = f"""HloModule jit_step, is_scheduled=true, num_partitions=8

%fused_computation.526 (param_0.1: bf16[512,128]) -> (bf16[512,128], bf16[512,1024]) {{
  %param_0.1 = bf16[512,128]{{1,0}} parameter(0)
  %all-gather.108 = bf16[512,1024]{{1,0}} all-gather(%param_0.1), {GATHER}
  ROOT %custom-call.27 = (bf16[512,128]{{1,0}}, bf16[512,1024]{{1,0}}) \
custom-call(%all-gather.108), custom_call_target="AsyncCollectiveStart"
}}

%async_collective_fusion.598 (param_0.2: bf16[512,128], param_1.2: bf16[512,512]) -> \
(bf16[512,512], bf16[512,1024]) {{
  %param_1.2 = bf16[512,512]{{1,0}} parameter(1)
  %convolution.1 = bf16[512,512]{{1,0}} convolution(%param_1.2, %param_1.2), dim_labels=bf_io->bf
  %param_0.2 = bf16[512,128]{{1,0}} parameter(0)
  %all-gather.110 = bf16[512,1024]{{1,0}} all-gather(%param_0.2), {GATHER}
  ROOT %tuple.314 = (bf16[512,512]{{1,0}}, bf16[512,1024]{{1,0}}) \
tuple(%convolution.1, %all-gather.110)
}}

%fused_computation.535 (param_0.3: bf16[512,128]) -> bf16[512,1024] {{
  %param_0.3 = bf16[512,128]{{1,0}} parameter(0)
  %all-gather.126 = bf16[512,1024]{{1,0}} all-gather(%param_0.3), {GATHER}
  ROOT %custom-call.28 = bf16[512,1024]{{1,0}} custom-call(%all-gather.126), \
custom_call_target="AsyncCollectiveDone"
}}

ENTRY %main (w: bf16[512,128], x: bf16[512,512]) -> (bf16[512,1024], bf16[512,512]) {{
  %w = bf16[512,128]{{1,0}} parameter(0)
  %x = bf16[512,512]{{1,0}} parameter(1)
  %async-collective-start.1 = (bf16[512,128]{{1,0}}, bf16[512,1024]{{1,0}}) fusion(%w), \
kind=kCustom, calls=%fused_computation.526
  %negate.1 = bf16[512,512]{{1,0}} negate(%x), {cycles(500)}
  %element = bf16[512,128]{{1,0}} get-tuple-element(%async-collective-start.1), index=0
  %fusion.598 = (bf16[512,512]{{1,0}}, bf16[512,1024]{{1,0}}) fusion(%element, %negate.1), \
kind=kOutput, calls=%async_collective_fusion.598, {cycles(21340)}
  %async-collective-done.1 = bf16[512,1024]{{1,0}} fusion(%element), kind=kCustom, \
calls=%fused_computation.535
  %product = bf16[512,512]{{1,0}} get-tuple-element(%fusion.598), index=0
  ROOT %tuple = (bf16[512,1024]{{1,0}}, bf16[512,512]{{1,0}}) \
tuple(%async-collective-done.1, %product)
}}
"""

# The gradient of an embedding of 32,000 rows: its parts, 4,000 rows, do not fill tiles of 8 rows
# in 8 parts, so 32,256 rows are summed, and 224 rows of each device move to the next one.
PADDED = """HloModule jit_step, is_scheduled=true, num_partitions=8

%region_24.0 (a: bf16[], b: bf16[]) -> bf16[] {
  %a = bf16[] parameter(0)
  %b = bf16[] parameter(1)
  ROOT %sum = bf16[] add(%a, %b)
}

%all-reduce-scatter (input: bf16[32000,4096]) -> bf16[4032,4096] {
  %input = bf16[32000,4096]{1,0:T(8,128)(2,1)} parameter(0)
  %constant.171 = bf16[] constant(0)
  %pad.25 = bf16[32256,4096]{1,0:T(8,128)(2,1)} pad(%input, %constant.171), padding=0_256x0_0
  %all-reduce.9 = bf16[32256,4096]{1,0:T(8,128)(2,1)} all-reduce(%pad.25), channel_id=13, \
replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true, to_apply=%region_24.0, \
frontend_attributes={from-cross-replica-sharding="true"}
  %partition-id.7 = u32[] partition-id()
  %constant.172 = u32[] constant(4032)
  %multiply.89 = u32[]{:T(128)} multiply(%partition-id.7, %constant.172)
  %constant.173 = u32[] constant(0)
  ROOT %dynamic-slice.5 = bf16[4032,4096]{1,0:T(8,128)(2,1)S(1)} dynamic-slice(%all-reduce.9, \
%multiply.89, %constant.173), dynamic_slice_sizes={4032,4096}
}

ENTRY %main (g: bf16[32000,4096]) -> bf16[4256,4096] {
  %g = bf16[32000,4096]{1,0:T(8,128)(2,1)} parameter(0)
  %fusion.1 = bf16[4032,4096]{1,0:T(8,128)(2,1)S(1)} fusion(%g), kind=kCustom, \
calls=%all-reduce-scatter
  %slice.30 = bf16[224,4096]{1,0:T(8,128)(2,1)} slice(%fusion.1), slice={[3808:4032], [0:4096]}
  %collective-permute-start = (bf16[224,4096]{1,0:T(8,128)(2,1)}, \
bf16[224,4096]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}, u32[]{:S(2)}) \
collective-permute-start(%slice.30), channel_id=1, \
source_target_pairs={{0,1},{1,2},{2,3},{3,4},{4,5},{5,6},{6,7}}
  %copy.1 = bf16[4032,4096]{1,0:T(8,128)(2,1)} copy(%fusion.1)
  %collective-permute-done = bf16[224,4096]{1,0:T(8,128)(2,1)} \
collective-permute-done(%collective-permute-start)
  ROOT %concatenate.11 = bf16[4256,4096]{1,0:T(8,128)(2,1)} \
concatenate(%collective-permute-done, %copy.1), dimensions={0}
}
"""


def beside(text: str) -> dict[Place, list[str]]:
    found = async_collectives(parse_module(text))
    return {
        flight.place: [now.name for now in flight.beside]
        for some in found.values()
        for flight in some
    }


def by_name(text: str) -> dict[str, HloCollective]:
    return {each.name: each for each in hlo_collectives(text, (8,))}


def test_what_is_scheduled_between_start_and_done_runs_beside() -> None:
    # The reduce-scatter is synchronous, although an instruction stands between.
    assert beside(GPU) == {("main", "all-reduce-start.2"): ["loop_transpose_fusion.9"]}


def test_arrays_that_are_joined_into_one_count_each() -> None:
    found = by_name(GPU)
    assert found["all-reduce-start.2"].num_arrays == 3
    assert found["reduce-scatter-start"].num_arrays == 1
    assert found["all-reduce-start.2"].num_bytes == 3 * 1024 * 2


def test_operands_of_one_instruction_count_each() -> None:
    text = GPU.replace("all-reduce-start(%wrapped_concatenate.1)", "all-reduce-start(%a.1, %b.1)")
    assert by_name(text)["all-reduce-start.2"].num_arrays == 2


def test_a_user_may_join_arrays_too() -> None:
    """A concatenation that is no flat buffer is data of the program."""
    text = GPU.replace("bf16[3072]{0} concatenate", "bf16[3,1024]{1,0} concatenate")
    assert by_name(text)["all-reduce-start.2"].num_arrays == 1


def test_the_fusions_of_a_chain_run_beside_its_collective() -> None:
    place = ("fused_computation.526", "all-gather.108")
    links = ["async-collective-start.1", "fusion.598", "async-collective-done.1"]
    # What only stands between them is no part of the chain.
    assert beside(TPU) == {place: links}
    (found,) = hlo_collectives(TPU, (8,))
    assert (found.computation, found.name) == place
    assert found.num_bytes == 512 * 1024 * 2


def test_a_wrapped_collective_is_found() -> None:
    text = """HloModule m, is_scheduled=true, num_partitions=8

%wrapped (p: f32[8]) -> f32[64] {
  %p = f32[8]{0} parameter(0)
  ROOT %all-gather.1 = f32[64]{0} all-gather(%p), channel_id=1, replica_groups=[1,8]<=[8], \
dimensions={0}, use_global_device_ids=true
}

ENTRY %main (x: f32[8]) -> (f32[64], f32[8]) {
  %x = f32[8]{0} parameter(0)
  %async-start = ((f32[8]{0}), f32[64]{0}, u32[]) async-start(%x), calls=%wrapped
  %negate.1 = f32[8]{0} negate(%x)
  %async-update = ((f32[8]{0}), f32[64]{0}, u32[]) async-update(%async-start), calls=%wrapped
  %negate.2 = f32[8]{0} negate(%negate.1)
  %async-done = f32[64]{0} async-done(%async-update), calls=%wrapped
  ROOT %tuple = (f32[64]{0}, f32[8]{0}) tuple(%async-done, %negate.2)
}
"""
    assert beside(text) == {("wrapped", "all-gather.1"): ["negate.1", "async-update", "negate.2"]}


def test_the_permute_of_a_padded_reduce_scatter_is_part_of_it() -> None:
    (found,) = hlo_collectives(PADDED, (8,))
    assert (found.kind, found.name) == ("reduce-scatter", "all-reduce.9")
    # Planned are 32,000 rows.
    assert found.num_bytes == pytest.approx(32000 * 4096 * 2, rel=0.05)
    # One of something else is a permute.
    other = by_name(PADDED.replace("slice(%fusion.1)", "slice(%g)"))
    assert other["collective-permute-start"].kind == "permute"


DEVICE = DeviceSpec(
    name="a device",
    memory_bytes=2**30,
    memory_bytes_per_s=1e9,
    flop_per_s=(("bfloat16", 1e12), ("float32", 1e11)),
    source="a test",
)


def seconds(module: Module, name: str, cycles_per_s: float | None = None) -> float:
    entry = module.computations[module.entry]
    return Seconds(module, DEVICE, cycles_per_s).of(entry, entry.by_name[name])


def test_without_costs_an_instruction_takes_its_bytes_or_its_flop() -> None:
    module = parse_module(GPU)
    assert seconds(module, "loop_transpose_fusion.9") == pytest.approx(2 * 4 * 2**20 * 2 / 1e9)
    assert seconds(module, "all-reduce-start.2") == seconds(module, "bitcast.9") == 0
    product = parse_module(TPU)
    # 2 x 512^3 FLOP at 1e12, and the bytes of two operands and two results at 1e9.
    num_bytes = 2 * (512 * 128 + 512 * 512 + 512 * 512 + 512 * 1024)
    assert seconds(product, "fusion.598") == pytest.approx(max(2 * 512**3 / 1e12, num_bytes / 1e9))


def test_where_the_compiler_has_costs_only_they_count() -> None:
    module = parse_module(TPU)
    assert seconds(module, "fusion.598", 1e9) == pytest.approx(21340 / 1e9)
    assert seconds(module, "async-collective-start.1", 1e9) == 0


LOOP = """HloModule m, is_scheduled=true

%cut (stack: f32[64,1024], i: s32[]) -> f32[1,1024] {
  %stack = f32[64,1024]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %zero.1 = s32[] constant(0)
  %row = f32[1,1024]{1,0} dynamic-slice(%stack, %i, %zero.1), dynamic_slice_sizes={1,1024}
  ROOT %negate.1 = f32[1,1024]{1,0} negate(%row)
}

%body (carry: (s32[], f32[64,1024])) -> (s32[], f32[64,1024]) {
  %carry = (s32[], f32[64,1024]{1,0}) parameter(0)
  %j = s32[] get-tuple-element(%carry), index=0
  %rows = f32[64,1024]{1,0} get-tuple-element(%carry), index=1
  %cut.1 = f32[1,1024]{1,0} fusion(%rows, %j), kind=kLoop, calls=%cut
  ROOT %next = (s32[], f32[64,1024]{1,0}) tuple(%j, %rows)
}

%condition (carry.1: (s32[], f32[64,1024])) -> pred[] {
  %carry.1 = (s32[], f32[64,1024]{1,0}) parameter(0)
  ROOT %yes = pred[] constant(true)
}

ENTRY %main (p: f32[64,1024]) -> (s32[], f32[64,1024]) {
  %p = f32[64,1024]{1,0} parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[64,1024]{1,0}) tuple(%zero, %p)
  ROOT %loop = (s32[], f32[64,1024]{1,0}) while(%start), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"64"}}
}
"""


def test_a_loop_takes_its_trips_and_a_cut_only_what_it_cuts() -> None:
    row, index = 1024 * 4, 4
    assert seconds(parse_module(LOOP), "loop") == pytest.approx(64 * (2 * row + index) / 1e9)
