"""Seconds of instructions where the compiler says nothing."""

from __future__ import annotations

from meshwise.cluster.mesh import DeviceSpec
from meshwise.runtime.hlo.module import parse_module
from meshwise.runtime.hlo.seconds import Seconds

DEVICE = DeviceSpec(
    name="a device",
    memory_bytes=2**30,
    memory_bytes_per_s=1e9,
    flop_per_s=(("float32", 1e12),),
    source="a test",
)
TEXT = """HloModule m, is_scheduled=true

%half (a: f32[500]) -> f32[500] {
  %a = f32[500] parameter(0)
  ROOT %less = f32[500] negate(%a)
}

ENTRY %main (p: pred[], x: f32[500]) -> f32[500] {
  %p = pred[] parameter(0)
  %x = f32[500] parameter(1)
  %one = f32[500] call(%x), to_apply=%half
  ROOT %any = f32[500] conditional(%p, %one, %one), true_computation=%half, false_computation=%half
}
"""


def test_calls_and_branches_count_once() -> None:
    module = parse_module(TEXT)
    seconds = Seconds(module, DEVICE, 1e9)
    main = module.computations["main"]
    found = {x.opcode: seconds.of(main, x) for x in main.instructions}
    assert found["call"] == 2 * 500 * 4 / 1e9
    assert found["conditional"] == 2 * found["call"]
