"""The verifier of routes refuses each way in which a route can be wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwise.errors import ProgramError
from meshwise.resharding.route import Cut, Join, Move, Phase, Route
from meshwise.resharding.verify_route import verify_route

SOURCE = {0: ((0, 4),), 1: ((4, 8),)}
DESTINATION = {2: ((2, 6),), 3: ((0, 0),)}
CUTS = (Cut(0, 0, (((2, 4),),), (2,)), Cut(1, 1, (((0, 2),),), (3,)))
MOVES = (Move(2, 0, 2, 4, (2,)), Move(3, 1, 2, 5, (2,)))
JOIN = Join(2, (4, 5), (((0, 2),), ((2, 4),)), 6)
ROUTE = Route(
    held={0: 0, 1: 1},
    phases=(Phase(CUTS, MOVES, (JOIN,)),),
    shards={2: 6},
    crossing_elements=4,
    copied_elements=0,
)


def phases(cuts=CUTS, moves=MOVES, joins=(JOIN,)):
    return replace(ROUTE, phases=(Phase(cuts, moves, joins),))


def test_a_route_that_is_right_passes():
    verify_route(ROUTE, SOURCE, DESTINATION)


@pytest.mark.parametrize(
    ("route", "message"),
    [
        (replace(ROUTE, held={0: 0, 2: 1}), "device 2 holds value 1, and is not of the source"),
        (replace(ROUTE, shards={}), "device 2 is of the destination, and gets no tile"),
        (replace(ROUTE, shards={2: 4}), "device 2 ends with"),
        (replace(ROUTE, shards={2: 1}), "device 2 ends with value 1, which is on device 1"),
        (phases(moves=MOVES[:1]), "device 2 joins value 5 before it is made"),
        (phases(moves=(*MOVES, MOVES[0])), "value 4 is made twice, the second time on device 2"),
        (phases(moves=(MOVES[0], MOVES[1]._replace(source=0))), "value 3, which is on device 1"),
        (phases(moves=(MOVES[0], MOVES[1]._replace(shape=(3,)))), r"is of a value of shape \(2,\)"),
        (phases(cuts=(CUTS[0], CUTS[1]._replace(parts=(((3, 5),),)))), "cuts"),
        (phases(joins=(JOIN._replace(places=JOIN.places[::-1]),)), "device 2 joins"),
        (phases(joins=(JOIN._replace(values=(4, 4)),)), "device 2 joins"),
        (
            replace(ROUTE, phases=(Phase(CUTS, (), ()), Phase((), MOVES[:1], (JOIN,)))),
            "device 2 joins value 5 before",
        ),
        (
            replace(ROUTE, phases=(Phase(CUTS, (*MOVES, Move(4, 2, 3, 7, (2,))), (JOIN,)),)),
            "device 2 sends value 4 before it is made",
        ),
    ],
)
def test_what_is_wrong_is_refused(route, message):
    with pytest.raises(ProgramError, match=message):
        verify_route(route, SOURCE, DESTINATION)


def test_pieces_that_leave_a_gap_are_refused():
    route = replace(
        ROUTE,
        phases=(
            Phase(
                (Cut(0, 0, (((0, 1),), ((2, 4),)), (2, 3)),),
                (),
                (Join(0, (2, 3), (((0, 1),), ((2, 4),)), 4),),
            ),
        ),
        shards={0: 4},
    )
    with pytest.raises(ProgramError, match="once"):
        verify_route(route, SOURCE, {0: ((0, 4),)})
