"""The reader against texts written by hand: forms that XLA:CPU does not print."""

from __future__ import annotations

import pytest

from meshwise.errors import ProgramError
from meshwise.runtime.hlo.collectives import hlo_collectives
from meshwise.runtime.hlo.flop import hlo_dense_flop
from meshwise.runtime.hlo.groups import mesh_groups, parse_replica_groups
from meshwise.runtime.hlo.loops import trip_count
from meshwise.runtime.hlo.module import HloShape, parse_module, parse_shapes

HEAD = "HloModule m, is_scheduled=true, num_partitions=8\n\n"
ADD = """%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

"""


def entry(*lines: str, before: str = "") -> str:
    body = "\n".join("  " + line for line in lines)
    return f"{HEAD}{ADD}{before}ENTRY %main (p: f32[16,8]) -> f32[16,8] {{\n{body}\n}}\n"


def rows(text: str, sizes: tuple[int, ...] = (2, 4)) -> list[tuple[object, ...]]:
    return [(c.kind, c.axes, c.num_bytes, c.count) for c in hlo_collectives(text, sizes)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{0,1},{2,3}}", ((0, 1), (2, 3))),
        ("{{0},{1}}", ((0,), (1,))),
        ("{}", ()),
        ("[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("[4,2]<=[2,2,2]T(0,2,1)", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("[1,8]<=[8]", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("mesh['x'=2,'y'=4] {'y'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['x'=2,'y'=4] {'x'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['x'=2,'y'=2], device_ids=([2,2]T(1,0)) {'y'}", ((0, 2), (1, 3))),
        ("mesh['x'=2,'y'=2], device_ids=(0,2,1,3) {'y'}", ((0, 2), (1, 3))),
        ("mesh['x'=8] {'x':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['x'=8] {'x':(1)2}", ((0, 4), (1, 5), (2, 6), (3, 7))),
    ],
)
def test_replica_group_forms(text: str, expected: tuple[tuple[int, ...], ...]) -> None:
    assert parse_replica_groups(text) == expected


@pytest.mark.parametrize("text", ["[2,4]", "mesh['x'=2] {'z'}", "sometimes"])
def test_unknown_replica_groups_are_an_error(text: str) -> None:
    with pytest.raises(ProgramError, match="replica groups|axis"):
        parse_replica_groups(text)


def test_mesh_groups_are_row_major() -> None:
    assert mesh_groups((2, 2, 2), (1,)) == ((0, 2), (1, 3), (4, 6), (5, 7))


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("f32[2,3]{1,0}", 24),
        ("bf16[5]", 10),
        ("(f32[2]{0}, (s32[], pred[3]))", 15),
        ("f8e4m3fn[4,4]{1,0:T(8,128)(4,1)}", 16),
        ("s4[7]{0:E(4)}", 4),
        ("f32[<=4,2]", 32),
        ("(f32[2], token[])", 8),
    ],
)
def test_bytes_of_types(text: str, num_bytes: int) -> None:
    assert sum(shape.num_bytes for shape in parse_shapes(text)) == num_bytes


def test_unknown_dtype_is_an_error() -> None:
    with pytest.raises(ProgramError, match="q7"):
        _ = HloShape(dtype="q7", dims=(2,)).num_bytes


def test_gpu_asynchronous_pairs_count_once() -> None:
    text = entry(
        "%p = f32[16,8]{1,0} parameter(0)",
        "%ags = (f32[16,8]{1,0}, f32[64,8]{1,0}) all-gather-start(f32[16,8]{1,0} %p), channel_id=1,"
        " replica_groups=[2,4]<=[8], dimensions={0}, use_global_device_ids=true,"
        ' backend_config={"operation_queue_id":"0"}',
        "%agd = f32[64,8]{1,0} all-gather-done((f32[16,8]{1,0}, f32[64,8]{1,0}) %ags)",
        "%ars = f32[16,8]{1,0} all-reduce-start(%p), channel_id=2,"
        " replica_groups=[4,2]<=[2,4]T(1,0), use_global_device_ids=true, to_apply=%add",
        "%ard = f32[16,8]{1,0} all-reduce-done(%ars)",
        "%cps = (f32[16,8]{1,0}, f32[16,8]{1,0}, u32[], u32[]) collective-permute-start(%ard),"
        " channel_id=3, source_target_pairs={{0,4},{4,0},{1,5},{5,1}}",
        "ROOT %cpd = f32[16,8]{1,0} collective-permute-done(%cps)",
    )
    assert rows(text) == [
        ("all-gather", (1,), 2048, 1),
        ("all-reduce", (0,), 512, 1),
        ("permute", (0,), 1024, 1),
    ]


def test_a_mesh_with_an_order_of_its_devices_is_read_from_an_instruction() -> None:
    text = entry(
        "%p = f32[16,8]{1,0} parameter(0)",
        "ROOT %x = f32[16,8]{1,0} all-reduce(%p), channel_id=1,"
        " replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'},"
        " use_global_device_ids=true, to_apply=%add",
    )
    assert rows(text) == [("all-reduce", (0,), 512, 1)]


@pytest.mark.parametrize(("second", "count"), [('chain_id="1"', 1), ('chain_id="2"', 2)])
def test_a_collective_that_xla_tpu_runs_in_several_fusions_counts_once(
    second: str, count: int
) -> None:
    def part(name: str, chain: str) -> str:
        return f"""%{name} (q: f32[16,8]) -> f32[64,8] {{
  %q = f32[16,8]{{1,0}} parameter(0)
  ROOT %ag.{name} = f32[64,8]{{1,0}} all-gather(%q), channel_id=13, replica_groups=[2,4]<=[8], \
dimensions={{0}}, use_global_device_ids=true, frontend_attributes={{{chain}}}
}}

"""

    text = entry(
        "%p = f32[16,8]{1,0} parameter(0)",
        "%f = f32[64,8]{1,0} fusion(%p), kind=kCustom, calls=%first",
        "ROOT %g = f32[64,8]{1,0} fusion(%p), kind=kCustom, calls=%second",
        before=part("first", 'chain_id="1"') + part("second", second),
    )
    assert rows(text) == [("all-gather", (1,), 2048, 1)] * count


def test_an_all_reduce_of_which_xla_tpu_keeps_a_part_is_a_reduce_scatter() -> None:
    fused = """%all-reduce-scatter.3 (q: f32[16,8], at: s32[]) -> f32[4,8] {
  %q = f32[16,8]{1,0} parameter(0)
  %at = s32[] parameter(1)
  %sum = f32[16,8]{1,0} all-reduce(%q), channel_id=1, replica_groups=[2,4]<=[8], \
use_global_device_ids=true, to_apply=%add
  ROOT %part = f32[4,8]{1,0} dynamic-slice(%sum, %at, %at), dynamic_slice_sizes={4,8}
}

"""
    text = entry(
        "%p = f32[16,8]{1,0} parameter(0)",
        "%zero = s32[] constant(0)",
        "ROOT %f = f32[4,8]{1,0} fusion(%p, %zero), kind=kCustom, calls=%all-reduce-scatter.3",
        before=fused,
    )
    assert rows(text) == [("reduce-scatter", (1,), 512, 1)]


def test_generic_asynchronous_start_counts_what_it_wraps_once() -> None:
    wrapped = """%async (q: f32[16,8]) -> f32[4,8] {
  %q = f32[16,8]{1,0} parameter(0)
  ROOT %rs = f32[4,8]{1,0} reduce-scatter(%q), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}},
    use_global_device_ids=true, dimensions={0}, to_apply=%add
}

""".replace(",\n    use", ", use")
    text = entry(
        "%p = f32[16,8]{1,0} parameter(0)",
        "%s = ((f32[16,8]{1,0}), f32[4,8]{1,0}) async-start(%p), calls=%async",
        "%u = ((f32[16,8]{1,0}), f32[4,8]{1,0}) async-update(%s), calls=%async",
        "ROOT %d = f32[4,8]{1,0} async-done(%u), calls=%async",
        before=wrapped,
    )
    assert rows(text) == [("reduce-scatter", (1,), 512, 1)]


def test_array_and_tuple_all_to_all_agree() -> None:
    array = entry(
        "%p = f32[16,8]{1,0} parameter(0)",
        "ROOT %x = f32[16,8]{1,0} all-to-all(%p), channel_id=1, replica_groups=[2,4]<=[8],"
        " dimensions={0}",
    )
    parts = ", ".join(["f32[4,8]{1,0}"] * 4)
    tuples = entry(
        "%p = f32[4,8]{1,0} parameter(0)",
        f"ROOT %x = ({parts}) all-to-all(%p, %p, /*index=2*/%p, %p), channel_id=1,"
        " replica_groups={{0,1,2,3},{4,5,6,7}}",
    )
    assert rows(array) == rows(tuples) == [("all-to-all", (1,), 2048, 1)]


def test_groups_of_replicas_take_in_their_partitions() -> None:
    text = entry(
        "%p = f32[16,8]{1,0} parameter(0)",
        "ROOT %x = f32[16,8]{1,0} all-reduce(%p), channel_id=1, replica_groups={{0}},"
        " to_apply=%add",
    )
    assert rows(text) == [("all-reduce", (0, 1), 512, 1)]


def test_replica_only_module() -> None:
    text = entry(
        "%p = f32[16,8]{1,0} parameter(0)",
        "ROOT %x = f32[16,8]{1,0} all-reduce(%p), replica_groups={}, to_apply=%add",
    ).replace("num_partitions=8", "replica_count=8")
    assert rows(text) == [("all-reduce", (0, 1), 512, 1)]


def test_groups_that_are_no_mesh_axes() -> None:
    text = entry(
        "%p = f32[16,8]{1,0} parameter(0)",
        "ROOT %x = f32[16,8]{1,0} all-reduce(%p), channel_id=1,"
        " replica_groups={{0,1},{2,3},{4,5},{6,7}}, use_global_device_ids=true, to_apply=%add",
    )
    (record,) = hlo_collectives(text, (2, 4))
    assert record.axes is None
    assert record.group_size == 2
    assert rows(text, (2, 2, 2)) == [("all-reduce", (2,), 512, 1)]


def test_send_with_pairs_is_a_permute() -> None:
    text = entry(
        "%p = f32[16,8]{1,0} parameter(0)",
        "%t = token[] after-all()",
        "%s = (f32[16,8]{1,0}, u32[], token[]) send(%p, %t), channel_id=1,"
        " frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,2}}}",
        "ROOT %c = f32[16,8]{1,0} copy(%p)",
    )
    assert rows(text) == [("permute", (1,), 2048, 1)]


LOOP = """%body (c: (s32[], f32[16,8])) -> (s32[], f32[16,8]) {
  %c = (s32[], f32[16,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %v = f32[16,8]{1,0} get-tuple-element(%c), index=1
  %step = s32[] constant(STEP)
  %next = s32[] add(%i, %step)
  %r = f32[16,8]{1,0} all-reduce(%v), channel_id=1, replica_groups=[2,4]<=[8],
    use_global_device_ids=true, to_apply=%add
  ROOT %o = (s32[], f32[16,8]{1,0}) tuple(%next, %r)
}

%cond (c.1: (s32[], f32[16,8])) -> pred[] {
  %c.1 = (s32[], f32[16,8]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%c.1), index=0
  %limit = s32[] constant(LIMIT)
  ROOT %lt = pred[] compare(%i.1, %limit), direction=DIRECTION
}

""".replace(",\n    use", ", use")


def loop(first: str, step: int, limit: int, direction: str) -> str:
    before = LOOP.replace("STEP", str(step)).replace("LIMIT", str(limit))
    return entry(
        "%p = f32[16,8]{1,0} parameter(0)",
        f"%first = s32[] {first}",
        "%t = (s32[], f32[16,8]{1,0}) tuple(%first, %p)",
        "%w = (s32[], f32[16,8]{1,0}) while(%t), condition=%cond, body=%body",
        "ROOT %g = f32[16,8]{1,0} get-tuple-element(%w), index=1",
        before=before.replace("DIRECTION", direction),
    )


@pytest.mark.parametrize(
    ("first", "step", "limit", "direction", "count"),
    [
        (0, 1, 5, "LT", 5),
        (2, 1, 5, "LT", 3),
        (0, 2, 5, "LT", 3),
        (0, 1, 5, "LE", 6),
        (5, -1, 0, "GT", 5),
        (5, -2, 0, "GE", 3),
        (0, 3, 9, "NE", 3),
    ],
)
def test_trip_count_from_the_condition(
    first: int, step: int, limit: int, direction: str, count: int
) -> None:
    text = loop(f"constant({first})", step, limit, direction)
    assert rows(text) == [("all-reduce", (1,), 512, count)]


def test_loop_that_runs_no_trip_counts_nothing() -> None:
    assert rows(loop("constant(7)", 1, 5, "LT")) == []


def test_unknown_trip_count_is_an_error_unless_assumed() -> None:
    text = loop("parameter(1)", 1, 5, "LT")
    with pytest.raises(ProgramError, match="'w'.*unknown number of times"):
        hlo_collectives(text, (2, 4))
    assert [c.count for c in hlo_collectives(text, (2, 4), unknown_trip_count=9)] == [9]
    assert hlo_dense_flop(text) == 0


def test_known_trip_count_wins() -> None:
    text = loop("parameter(1)", 1, 5, "LT").replace(
        "body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"11"}}'
    )
    module = parse_module(text)
    main = module.computations["main"]
    assert trip_count(module, main, main.by_name["w"]) == 11
    assert [row[3] for row in rows(text)] == [11]


def test_matmul_library_calls() -> None:
    text = entry(
        "%p = f32[16,8]{1,0} parameter(0)",
        "%w = f32[8,32]{1,0} parameter(1)",
        "%v = f32[32,8]{1,0} parameter(2)",
        "%one = (f32[16,32]{1,0}, s8[1024]{0}) custom-call(%p, %w),"
        ' custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{'
        '"alpha_real":1,"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],'
        '"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[],'
        '"rhs_batch_dimensions":[]}}}',
        "%two = f32[16,32]{1,0} custom-call(%p, %v),"
        ' custom_call_target="__onednn$matmul", backend_config={"onednn_matmul_config":{}}',
        '%no = f32[16,32]{1,0} custom-call(%p, %v), custom_call_target="TopK"',
        "ROOT %three = f32[16,32]{1,0} custom-call(%p, %w, %p, %p),"
        ' custom_call_target="__cublas$lt$matmul$f8", metadata={op_name="dot(f)"}',
    )
    assert hlo_dense_flop(text) == 3 * 2 * 16 * 8 * 32


def test_convolution_library_calls_count_alike() -> None:
    image, kernel, out = "f32[2,8,8,4]{3,2,1,0}", "f32[3,3,4,16]{3,2,1,0}", "f32[2,8,8,16]{3,2,1,0}"
    labels = "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f"
    text = entry(
        f"%x = {image} parameter(0)",
        f"%k = {kernel} parameter(1)",
        f"%y = ({out}, u8[0]) custom-call(%x, %k), {labels},"
        ' custom_call_target="__cudnn$convForward"',
        f"%o = {out} get-tuple-element(%y), index=0",
        f"%dx = ({image}, u8[0]) custom-call(%o, %k), {labels},"
        ' custom_call_target="__cudnn$convBackwardInput"',
        f"ROOT %dk = ({kernel}, u8[0]) custom-call(%x, %o), {labels},"
        ' custom_call_target="__cudnn$convBackwardFilter"',
    )
    assert hlo_dense_flop(text) == 3 * 2 * (2 * 8 * 8) * 16 * 9 * 4


def test_fusion_and_call_are_entered() -> None:
    before = """%inner (a.1: f32[16,8], b.1: f32[8,8]) -> f32[16,8] {
  %a.1 = f32[16,8]{1,0} parameter(0)
  %b.1 = f32[8,8]{1,0} parameter(1)
  ROOT %d = f32[16,8]{1,0} dot(%a.1, %b.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

"""
    text = entry(
        "%p = f32[16,8]{1,0} parameter(0)",
        "%q = f32[8,8]{1,0} parameter(1)",
        "%f = f32[16,8]{1,0} fusion(%p, %q), kind=kOutput, calls=%inner",
        "ROOT %c = f32[16,8]{1,0} call(%f, %q), to_apply=%inner",
        before=before,
    )
    assert hlo_dense_flop(text) == 2 * 2 * 16 * 8 * 8


def test_strings_and_long_constants_do_not_confuse() -> None:
    text = entry(
        "%p = f32[16,8]{1,0} parameter(0)",
        "%k = s32[2,2]{1,0} constant({",
        "  { 1, 2 },",
        "  { 3, 4 } })",
        "ROOT %x = f32[16,8]{1,0} all-reduce(%p), channel_id=1, replica_groups=[1,8]<=[8],"
        " use_global_device_ids=true, to_apply=%add,"
        ' metadata={op_name="a), replica_groups={{0}} (\\"b\\"" source_file="x(y.py"}',
    )
    assert rows(text) == [("all-reduce", (0, 1), 512, 1)]
    assert len(parse_module(text).computations["main"].instructions) == 3


@pytest.mark.parametrize("text", ["", "func.func @main()", "HloModule empty\n"])
def test_other_text_is_an_error(text: str) -> None:
    with pytest.raises(ProgramError, match="HLO"):
        parse_module(text)


def test_what_a_kernel_says_of_itself_may_span_lines() -> None:
    """XLA:TPU prints the metadata of a Pallas kernel as JSON, with a line for each key."""
    said = 'frontend_attributes={kernel_metadata={\n"xprof_metadata":"{\\"block_q\\": (1}"\n}}'
    text = entry(
        "%p = f32[16,8] parameter(0)",
        f'%k = f32[16,8] custom-call(%p), custom_call_target="k", {said}, metadata={{}}',
        f"%k.2 = f32[16,8] copy(%k), {said}",
        "ROOT %r = f32[16,8] negate(%k.2)",
    )
    main = parse_module(text).computations["main"]
    assert [i.opcode for i in main.instructions] == ["parameter", "custom-call", "copy", "negate"]
    assert main.instructions[1].attributes.endswith("metadata={}")
