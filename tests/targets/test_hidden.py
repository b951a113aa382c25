"""Seconds of collectives, and of those that other work hides."""

from __future__ import annotations

import pytest

from meshwise.cluster.collectives import collective_time_s
from meshwise.cluster.mesh import DeviceSpec, LogicalMesh, MeshAxis
from meshwise.targets.hidden import TimedCollective, timed_collectives
from meshwise.targets.verified_collectives import VerifiedCollectives, collectives_text

MESH = LogicalMesh(
    axes=(MeshAxis(name="x", size=8, latency_s=1e-6, link_bytes_per_s=1e9),),
    device=DeviceSpec(
        name="a device",
        memory_bytes=2**30,
        memory_bytes_per_s=1e9,
        flop_per_s=(("float32", 1e12),),
        source="a test",
    ),
)
NUM_BYTES = 1000 * 4
ONE_S = collective_time_s("all-reduce", (0,), NUM_BYTES, MESH)


def program(schedule: str) -> str:
    """Four instructions of a body that runs three times, in an order."""
    lines = {
        "A": "%first = f32[1000] all-reduce-start(%x), channel_id=1, "
        "replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=%add",
        "a": "%first.done = f32[1000] all-reduce-done(%first)",
        "B": "%second = f32[1000] all-reduce-start(%x), channel_id=2, "
        "replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=%add",
        "b": "%second.done = f32[1000] all-reduce-done(%second)",
        "w": "%work = f32[{size}] negate(%y)",
    }
    body = "\n".join(f"  {lines[letter]}" for letter in schedule)
    return f"""HloModule m, is_scheduled=true, num_partitions=8

%add (p: f32[], q: f32[]) -> f32[] {{
  %p = f32[] parameter(0)
  %q = f32[] parameter(1)
  ROOT %sum = f32[] add(%p, %q)
}}

%body (c: (f32[1000], f32[{{size}}])) -> (f32[1000], f32[{{size}}]) {{
  %c = (f32[1000], f32[{{size}}]) parameter(0)
  %x = f32[1000] get-tuple-element(%c), index=0
  %y = f32[{{size}}] get-tuple-element(%c), index=1
{body}
  ROOT %next = (f32[1000], f32[{{size}}]) tuple(%first.done, %work)
}}

%condition (d: (f32[1000], f32[{{size}}])) -> pred[] {{
  %d = (f32[1000], f32[{{size}}]) parameter(0)
  ROOT %yes = pred[] constant(true)
}}

ENTRY %main (s: (f32[1000], f32[{{size}}])) -> (f32[1000], f32[{{size}}]) {{
  %s = (f32[1000], f32[{{size}}]) parameter(0)
  ROOT %loop = (f32[1000], f32[{{size}}]) while(%s), condition=%condition, body=%body, \
backend_config={{"known_trip_count":{{"n":"3"}}}}
}}
"""


def timed(schedule: str, work_s: float) -> dict[str, TimedCollective]:
    # The work reads and writes four bytes an element.
    size = round(work_s * 1e9 / 8)
    found = timed_collectives(program(schedule).replace("{size}", str(size)), MESH, None)
    assert all(each.collective.count == 3 for each in found)
    assert all(each.seconds == pytest.approx(ONE_S) for each in found)
    return {each.collective.name: each for each in found}


@pytest.mark.parametrize(
    ("schedule", "work", "first", "second"),
    [
        # In parts of the seconds of one collective: what runs beside, and what is hidden.
        ("AawBb", 5.0, 0.0, 0.0),
        ("AwaBb", 0.5, 0.5, 0.0),
        ("AwaBb", 5.0, 1.0, 0.0),
        # Beside two: the one that ends first is hidden first.
        ("ABwab", 1.5, 1.0, 0.5),
        ("ABwba", 1.5, 0.5, 1.0),
        ("ABwab", 5.0, 1.0, 1.0),
    ],
)
def test_work_hides_each_second_once(
    schedule: str, work: float, first: float, second: float
) -> None:
    found = timed(schedule, work * ONE_S)
    assert found["first"].hidden_s == pytest.approx(first * ONE_S, rel=1e-3)
    assert found["second"].hidden_s == pytest.approx(second * ONE_S, rel=1e-3)


def test_merged_and_hidden_are_shown() -> None:
    text = "\n".join(
        collectives_text(
            [
                VerifiedCollectives(
                    kind="all-reduce",
                    axes=("x",),
                    planned_bytes=2**20,
                    planned_number=12,
                    planned_s=5e-3,
                    compiled_bytes=2**20,
                    compiled_number=1,
                    compiled_s=2e-3,
                    merged=12,
                    hidden_s=1.5e-3,
                )
            ]
        )
    )
    assert "12 in 1     2 ms  1.5 ms" in text
    told = " ".join(text.split())
    assert "the planned collectives of a step take 5 ms one by one" in told
    assert "500 us are not hidden" in told
