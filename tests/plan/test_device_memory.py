"""Peaks compared with memory: the numbers, the sentence and the fields of JSON."""

from __future__ import annotations

from meshwise.plan.text.columns import WIDTH
from meshwise.plan.text.device_memory import MemoryCheck, mesh_memories, too_large
from meshwise.units import GIB


def check(
    peaks: list[int], memory: list[int], mesh_of_stage: list[int], holder: str = "a device"
) -> MemoryCheck:
    meshes = mesh_memories(mesh_of_stage, peaks, memory)
    return MemoryCheck(meshes=meshes, holder=holder, remedy="Plan again.")


def test_a_byte_decides() -> None:
    assert too_large([GIB, GIB + 1, GIB - 1], [GIB, GIB, GIB]) == (1,)
    full = check([GIB], [GIB], [0])
    assert full.fits
    assert full.warning_lines() == []
    assert full.sentence == "fits: 0 B of 1 GiB are free on the fullest device"
    assert full.data() == {"fits": True, "too_large": []}
    over = check([GIB + 1], [GIB], [0])
    assert not over.fits
    assert over.sentence == (
        "does not fit: the plan needs 1 GiB, a device has 1 GiB: 1 B too much. Plan again."
    )


def test_the_fullest_device_has_the_least_free() -> None:
    found = check([30 * GIB, 12 * GIB], [40 * GIB, 16 * GIB], [0, 1])
    assert found.sentence == "fits: 4 GiB of 16 GiB are free on the fullest device (stage 1)"


def test_the_largest_excess_comes_first() -> None:
    found = check([12 * GIB, 20 * GIB, 9 * GIB], [10 * GIB] * 3, [0, 1, 2])
    assert found.sentence == (
        "does not fit: stage 1 needs 20 GiB, a device has 10 GiB: 10 GiB too much; stage 0 needs "
        "12 GiB of 10 GiB: 2 GiB too much. Plan again."
    )
    assert found.too_large == (0, 1)
    many = check([k * GIB for k in range(8)], [GIB] * 8, list(range(8)))
    assert "stage 4 needs 4 GiB of 1 GiB: 3 GiB too much; and 2 more. Plan again." in many.sentence
    assert len(many.data()["too_large"]) == 6


def test_stages_that_share_a_mesh_are_named_together() -> None:
    found = check([7 * GIB, 11 * GIB], [10 * GIB, 10 * GIB], [0, 1, 0, 1])
    assert found.sentence.startswith("does not fit: mesh 1 (stages 1, 3) needs 11 GiB, a device ")
    assert found.data() == {
        "fits": False,
        "too_large": [
            {
                "mesh": 1,
                "stages": [1, 3],
                "peak_bytes": 11 * GIB,
                "memory_bytes": 10 * GIB,
                "excess_bytes": GIB,
            }
        ],
    }


def test_lines_keep_to_the_width_and_amounts_to_a_line() -> None:
    for length in range(60):
        name = "x" * length
        found = check([12 * GIB, 20 * GIB], [10 * GIB] * 2, [0, 1], f"a device of {name}")
        for subject in ("", name[:30]):
            lines = found.warning_lines(subject)
            assert max(map(len, lines)) <= WIDTH
            assert "does not fit: stage 1 needs 20 GiB" in lines[0]
            assert all(not line.startswith(("GiB", "0 ", "1 ")) for line in lines)
            assert "\u00a0" not in "".join(lines)
