"""Costs in optimised HLO, as libtpu 0.0.42.1 and jax-cuda12-pjrt 0.10.2 print them, shortened."""

from __future__ import annotations

import pytest

from meshwise.errors import ProgramError
from meshwise.runtime.hlo.costs import hlo_costs


def window(cycles: int) -> str:
    return (
        'backend_config={"flag_configs":[],"window_config":{"kernel_window_bounds":["64","4"],'
        f'"estimated_cycles":"{cycles}","iteration_bounds":["1","1"],'
        '"cost_model_type":"COST_MODEL_TYPE_CLASSIC","ml_estimated_microseconds":0},'
        '"retry_config":{"retry_count":"0"},"aliasing_operands":{"lists":[]}}'
    )


TPU = f"""HloModule jit_f, is_scheduled=true, num_partitions=8

%fused_computation (param_0: bf16[512,512]) -> bf16[512,512] {{
  %param_0 = bf16[512,512]{{1,0:T(8,128)(2,1)}} parameter(0)
  ROOT %negate.1 = bf16[512,512]{{1,0:T(8,128)(2,1)}} negate(%param_0), {window(99)}
}}

%body (carry: (s32[], bf16[512,512])) -> (s32[], bf16[512,512]) {{
  %carry = (s32[], bf16[512,512]{{1,0:T(8,128)(2,1)}}) parameter(0)
  %i = s32[]{{:T(128)}} get-tuple-element(%carry), index=0
  %x = bf16[512,512]{{1,0:T(8,128)(2,1)}} get-tuple-element(%carry), index=1
  %fusion.1 = bf16[512,512]{{1,0:T(8,128)(2,1)}} fusion(%x), kind=kOutput, \
calls=%fused_computation, metadata={{op_name="jit(f)/while/body/dot_general"}}, {window(3000)}
  ROOT %next = (s32[], bf16[512,512]{{1,0:T(8,128)(2,1)}}) tuple(%i, %fusion.1)
}}

%condition (carry.1: (s32[], bf16[512,512])) -> pred[] {{
  %carry.1 = (s32[], bf16[512,512]{{1,0:T(8,128)(2,1)}}) parameter(0)
  ROOT %true = pred[]{{:T(512)}} constant(true)
}}

%add (a: bf16[], b: bf16[]) -> bf16[] {{
  %a = bf16[] parameter(0)
  %b = bf16[] parameter(1)
  ROOT %sum = bf16[] add(%a, %b)
}}

ENTRY %main (p: bf16[512,512]) -> bf16[512,512] {{
  %p = bf16[512,512]{{1,0:T(8,128)(2,1)}} parameter(0)
  %zero = s32[]{{:T(128)}} constant(0)
  %convert.1 = bf16[512,512]{{1,0:T(8,128)(2,1)}} convert(%p), {window(1500)}
  %start = (s32[], bf16[512,512]{{1,0:T(8,128)(2,1)}}) tuple(%zero, %convert.1)
  %loop = (s32[], bf16[512,512]{{1,0:T(8,128)(2,1)}}) while(%start), condition=%condition, \
body=%body, backend_config={{"known_trip_count":{{"n":"4"}}}}
  %y = bf16[512,512]{{1,0:T(8,128)(2,1)}} get-tuple-element(%loop), index=1
  ROOT %all-reduce.1 = bf16[512,512]{{1,0:T(8,128)(2,1)}} all-reduce(%y), channel_id=1, \
replica_groups=[1,8]<=[8], to_apply=%add, {window(7777)}
}}
"""


def test_cycles_of_a_tpu_are_seconds_times_trips() -> None:
    costs = hlo_costs(TPU, cycles_per_s=1.5e9)
    # Neither what is inside the fusion nor the collective.
    assert [(c.name, c.seconds, c.count) for c in costs] == [
        ("convert.1", pytest.approx(1e-6), 1),
        ("fusion.1", pytest.approx(2e-6), 4),
    ]
    assert costs[1].op_name == "jit(f)/while/body/dot_general"


def test_a_loop_of_unknown_trips_needs_a_number() -> None:
    text = TPU.replace('"known_trip_count":{"n":"4"}', "")
    with pytest.raises(ProgramError, match="runs an unknown number of times"):
        hlo_costs(text, cycles_per_s=1.5e9)
    assert [c.count for c in hlo_costs(text, cycles_per_s=1.5e9, unknown_trip_count=2)] == [1, 2]


def test_cycles_without_a_clock_say_nothing() -> None:
    assert hlo_costs(TPU) == ()


def model(us: float, name: str) -> str:
    return (
        f'{{"end_to_end_cycles":0,"exec_time_us":{us},"compute_time_us":0,'
        f'"memory_access_time_us":0,"name":"{name}"}}'
    )


GPU = f"""HloModule jit_f, is_scheduled=true

%fused_add (param_0: f32[8388608]) -> f32[8388608] {{
  %param_0 = f32[8388608]{{0}} parameter(0)
  ROOT %add.1 = f32[8388608]{{0}} add(%param_0, %param_0)
}}

ENTRY %main (x: f32[8388608], w: bf16[512,512]) -> (f32[8388608], bf16[512,512]) {{
  %x = f32[8388608]{{0}} parameter(0)
  %w = bf16[512,512]{{1,0}} parameter(1)
  %loop_add_fusion = f32[8388608]{{0}} fusion(%x), kind=kLoop, calls=%fused_add, \
backend_config={{"operation_queue_id":"0","reification_cost":[{model(20.0625, "")},\
{model(20.03725, "sol")}]}}
  %custom-call.3 = (bf16[512,512]{{1,0}}, s8[33554432]{{0}}) custom-call(%w, %w), \
custom_call_target="__cublas$lt$matmul", backend_config={{"operation_queue_id":"0",\
"gemm_backend_config":{{"alpha_real":1,"beta":0}},"reification_cost":[{model(6.16, "sol")}]}}
  %product = bf16[512,512]{{1,0}} get-tuple-element(%custom-call.3), index=0
  %copy.1 = f32[8388608]{{0}} copy(%x), backend_config={{"reification_cost":[]}}
  ROOT %tuple.1 = (f32[8388608]{{0}}, bf16[512,512]{{1,0}}) tuple(%loop_add_fusion, %product)
}}
"""


def test_a_gpu_has_seconds_of_the_model_that_knows_products() -> None:
    assert [(c.name, c.seconds) for c in hlo_costs(GPU)] == [
        ("loop_add_fusion", pytest.approx(20.03725e-6)),
        ("custom-call.3", pytest.approx(6.16e-6)),
    ]
