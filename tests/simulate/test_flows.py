"""Flows between the hosts of two meshes take as long as a planned transfer by the same strategy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from evaluation.alpacomm.cases import CASES, ONE_TO_MANY, Case

import meshwise as mw
from meshwise.cluster.submesh import SubmeshKind
from meshwise.resharding.between import Passing, arrival
from meshwise.resharding.cross_mesh.cross_mesh_plan import cross_mesh_plan
from meshwise.resharding.cross_mesh.strategies import STRATEGIES
from meshwise.simulate.flows import flows_between, host_links
from meshwise.simulate.links import Flow
from simulate.by_name import Action, Transfer, outcome

CLUSTER = mw.Cluster.virtual("10x p3.8xlarge")
HOST = CLUSTER.host_at(0)


def end_s(flows: Sequence[Flow]) -> float:
    """Return when the last of flows ends that begin together."""
    at_once = tuple(flow._replace(latency_s=0.0) for flow in flows)
    transfer = Transfer(0, 0, at_once)
    return outcome([[Action(0.0, (), (0,))]], [transfer], host_links(CLUSTER)).run.makespan_s


def flows_of(case: Case, passing: Passing | None) -> tuple[Flow, ...]:
    (left, a), (right, b) = case.source, case.destination
    sides = (range(left), a), (range(left, left + right), b)
    return flows_between(CLUSTER, *sides, case.num_bytes, passing)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_transfer_takes_as_long_as_it_is_planned(case: Case, strategy: str) -> None:
    num_hosts, per_host = case.destination
    kind = SubmeshKind(host=HOST, num_hosts=num_hosts, devices_per_host=per_host)
    mesh = kind.mesh(case.destination)
    passing, gather_s = arrival(case.num_bytes, case.after, mesh, num_hosts, strategy)
    plan = cross_mesh_plan(case.tasks(), HOST.nics_bytes_per_s, strategy)
    # Gathering inside a host is neglected by the plan.
    assert end_s(flows_of(case, passing)) + gather_s == pytest.approx(plan.makespan_s, rel=0.02)


@pytest.mark.parametrize("case", [*CASES, *ONE_TO_MANY], ids=lambda case: case.name)
def test_bytes_that_pass_once_are_spread_evenly(case: Case) -> None:
    flows = flows_of(case, None)
    for host_of, (num_hosts, _) in (
        (lambda flow: flow.source, case.source),
        (lambda flow: flow.destination, case.destination),
    ):
        ordered = sorted(flows, key=host_of)
        sums = [sum(f.num_bytes for f in g) for _, g in itertools.groupby(ordered, host_of)]
        assert sums == pytest.approx([case.num_bytes / num_hosts] * num_hosts)


def test_a_chain_passes_on_what_arrives() -> None:
    replicated = next(case for case in CASES if case.name == "7")
    sent = flows_of(replicated, Passing(sent=1.0, received=1.0))
    half = replicated.num_bytes / 2
    pairs = [(f.source, f.destination, f.num_bytes) for f in sent]
    assert pairs == [(0, 1, half), (0, 2, half), (1, 2, half), (2, 1, half)]
