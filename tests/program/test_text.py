"""Programs print and read back; what is no program is told by its line."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.errors import ProgramError
from meshwise.graph.layout import MONOIDS, Layout
from meshwise.program.emit import emit
from meshwise.program.instructions import (
    Free,
    Load,
    MeshProgram,
    PipelineProgram,
    Receive,
    Run,
    Send,
)
from meshwise.program.text import around, parse_instruction, parse_program
from meshwise.schedules.registry import make_schedule, tables
from program.specs import chain

NUMBER = st.integers(0, 10**6)
BUFFERS = st.lists(NUMBER, max_size=4).map(tuple)
MICROBATCH = st.integers(-1, 128)
AXES = st.lists(st.integers(0, 9), max_size=3, unique=True).map(tuple)
PARTIAL = st.lists(st.integers(0, 9), min_size=1, max_size=2, unique=True).map(sorted).map(tuple)
DIMS = st.lists(AXES, max_size=4).map(tuple)
LAYOUTS = st.tuples(DIMS).map(lambda x: Layout(*x)) | st.tuples(
    DIMS, PARTIAL, st.sampled_from(MONOIDS)
).map(lambda x: Layout(*x))
INSTRUCTIONS = (
    st.builds(
        Run,
        label=st.text(max_size=12),
        program=NUMBER,
        microbatch=MICROBATCH,
        inputs=BUFFERS,
        outputs=BUFFERS,
        donated=BUFFERS,
    )
    | st.builds(Send, transfer=NUMBER, buffer=NUMBER, mesh=NUMBER, layout=LAYOUTS)
    | st.builds(Receive, transfer=NUMBER, buffer=NUMBER, mesh=NUMBER)
    | st.builds(Free, buffers=BUFFERS)
)
LOADS = st.builds(
    Load,
    buffer=NUMBER,
    kind=st.sampled_from(("argument", "rows", "index")),
    number=NUMBER,
    microbatch=MICROBATCH,
    layout=LAYOUTS,
)
PAIRS = st.lists(st.tuples(NUMBER, NUMBER), max_size=3).map(tuple)
PROGRAMS = st.builds(
    PipelineProgram,
    meshes=st.lists(
        st.builds(
            MeshProgram,
            loads=st.lists(LOADS, max_size=3).map(tuple),
            instructions=st.lists(INSTRUCTIONS, max_size=5).map(tuple),
            results=PAIRS,
        ),
        max_size=3,
    ).map(tuple),
    order=st.lists(st.integers(0, 12), max_size=9).map(tuple),
    passed=PAIRS,
)


@given(INSTRUCTIONS)
def test_an_instruction_is_one_line_that_reads_back(
    instruction: Run | Send | Receive | Free,
) -> None:
    text = str(instruction)
    assert len(text.splitlines()) == 1
    assert parse_instruction(text) == instruction


@settings(max_examples=60)
@given(PROGRAMS)
def test_a_program_reads_back(found: PipelineProgram) -> None:
    assert parse_program(str(found)) == found


@pytest.mark.parametrize("name", [name for name in tables() if name != "inference"])
def test_what_is_emitted_reads_back(name: str, golden) -> None:
    meshes = 4 // tables()[name].chunks
    schedule = make_schedule(name, num_stages=4, num_microbatches=4, num_meshes=meshes)
    found = emit(*chain([0, 1, 1, 2, 3], splits=schedule.splits_backward), schedule)
    text = str(found)
    golden(f"programs/{name}.txt", text + "\n")
    assert parse_program(text) == found
    assert '"forward of layer 0" @0' in text
    lines = sum(len(m.loads) + len(m.instructions) + len(m.results) + 1 for m in found.meshes)
    assert len(text.splitlines()) == lines + len(found.passed) + 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no line 'order ...'"),
        ("mesh 1\norder -", "line 1 of the program: mesh 0 comes next, not 1"),
        ("mesh 0\n  jump 3\norder -", "line 2 of the program: not an instruction: 'jump 3'"),
        ("mesh 0\n  free\norder -", "line 2 of the program: not an instruction"),
        ("  free 3\norder -", "line 1 of the program: 'free 3' stands before the first mesh"),
        (
            "mesh 0\n  send 1 to mesh 1 as Q #0\norder -",
            "line 2 of the program: not a layout: 'Q'",
        ),
        ("mesh 0\n  free 1\n  load 1 = argument 0 as -\norder -", "stands behind an instruction"),
        ("mesh 0\n  return 1 as result 0\n  free 1\norder -", "stands behind a result"),
        ("order -\norder -", "line 2 of the program: not understood: 'order -'"),
        ("mesh 0\norder 0", "line 2 of the program: not understood"),
    ],
)
def test_what_is_no_program_is_told_by_its_line(text: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        parse_program(text)


def test_an_instruction_is_shown_with_those_next_to_it() -> None:
    mesh = MeshProgram(
        loads=(), instructions=tuple(Free(buffers=(b,)) for b in range(9)), results=()
    )
    assert around(mesh, 4).splitlines() == [
        "  1: free 1",
        "  2: free 2",
        "  3: free 3",
        "> 4: free 4",
        "  5: free 5",
        "  6: free 6",
        "  7: free 7",
    ]
    assert around(mesh, 0).splitlines()[0] == "> 0: free 0"
    assert around(mesh, 8).splitlines()[-1] == "> 8: free 8"
