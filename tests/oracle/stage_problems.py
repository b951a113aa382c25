"""Small random stage problems, and their best stages by enumeration."""

from __future__ import annotations

import functools
import itertools
import math
import random
from dataclasses import fields, replace

import numpy as np

from doubles.submesh_kinds import HostKind, mixed_submeshes, uniform_submeshes
from meshwise.inter.stages.objective import step_time
from meshwise.inter.stages.stage_problem import StageCosts, StageProblem, StageSpan, memory_bytes
from meshwise.schedules.eager_one_f_one_b import EAGER
from meshwise.schedules.gpipe import GPIPE
from meshwise.schedules.interleaved import Interleaved
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.schedules.zero_bubble_h1 import ZERO_BUBBLE

SCHEDULES = (GPIPE, ONE_F_ONE_B, EAGER, ZERO_BUBBLE, Interleaved(chunks=2))


def random_problem(seed, mixed=False, max_layers=6, *, inner=False):
    """Uneven costs that hardly follow the size of the submesh, memory that often binds.

    With `inner`, submeshes inside a host are told from those that begin one, and get what the stage
    before sends in a tenth of the time.
    """
    rng = np.random.default_rng(seed)
    plain = random.Random(seed)
    devices_per_host = plain.choice([2, 4])
    num_hosts = plain.choice([1, 2, 3, 4] if devices_per_host == 2 else [1, 2])
    if mixed:
        hosts = [
            HostKind(
                kind=plain.choice("ab"),
                num_devices=plain.choice([devices_per_host, devices_per_host, 3]),
                memory_bytes=0.0,
            )
            for _ in range(num_hosts)
        ]
        hosts = [replace(h, memory_bytes=100.0 if h.kind == "a" else 60.0) for h in hosts]
        submeshes = mixed_submeshes(hosts, all_shapes=plain.random() < 0.3)
        num_devices = sum(h.num_devices for h in hosts)
    else:
        submeshes = uniform_submeshes(num_hosts, devices_per_host, 100.0)
        num_devices = num_hosts * devices_per_host
    num_layers, num_variants = plain.randint(1, max_layers), plain.randint(1, 3)
    shape = (num_layers, num_layers, len(submeshes), num_variants)
    work = rng.uniform(0.2, 2.0, num_layers)
    size = np.array([m.num_devices for m in submeshes])
    whole = np.zeros((num_layers, num_layers))
    for i in range(num_layers):
        for j in range(i, num_layers):
            whole[i, j] = work[i : j + 1].sum()
    share = (whole[:, :, None] / size ** rng.uniform(0.3, 1.0))[..., None]
    tight = plain.choice([20.0, 60.0, 110.0])
    microbatch = share * rng.uniform(0.7, 1.5, shape)
    # Equal numbers here and there: ties.
    if plain.random() < 0.3:
        microbatch = np.round(microbatch, 1)
    gone = rng.random(shape) < 0.05
    later = np.tril(np.ones((num_layers, num_layers), bool), -1)[..., None, None]
    costs = StageCosts(
        submeshes=submeshes,
        microbatch_s=np.where(gone | later, np.inf, microbatch),
        once_s=share * rng.uniform(0.0, 2.0, shape),
        resident_bytes=share * tight * rng.uniform(0.2, 0.6, shape),
        microbatch_bytes=share * tight * rng.uniform(0.0, 0.4, shape),
        temporary_bytes=rng.uniform(0.0, 10.0, shape),
        gather_s=share * rng.uniform(0.0, 0.5, shape) * rng.integers(0, 2, shape),
    )
    transfer = rng.uniform(0.0, 0.6, (num_layers - 1, len(submeshes), len(submeshes)))
    if plain.random() < 0.3:
        # Some kinds of submeshes are alike as right neighbours.
        transfer[:, :, 1:] = transfer[:, :, -1:]
    schedule = plain.choice(SCHEDULES)
    if inner:
        sizes = [h.num_devices for h in hosts]
        costs, transfer = _split_by_place(costs, transfer, [0, *np.cumsum(sizes)[:-1].tolist()])
    return StageProblem(
        costs=costs,
        num_devices=num_devices,
        num_microbatches=plain.choice([1, 2, 4, 6, 32]),
        schedule=replace(schedule, hides_transfers=plain.random() < 0.5),
        transfer_s=None if plain.random() < 0.2 else transfer,
        use_all_devices=plain.random() < 0.5,
    )


def _split_by_place(costs, transfer, host_starts):
    """Submeshes that begin a host and those inside one apart, at the same costs."""
    split = [
        (i, replace(m, starts=starts, is_inner=is_inner))
        for i, m in enumerate(costs.submeshes)
        for is_inner in (False, True)
        if (starts := tuple(p for p in m.starts if (p not in host_starts) == is_inner))
    ]
    which = [i for i, _ in split]
    arrays = {
        field.name: np.take(value, which, axis=2)
        for field in fields(costs)
        if field.name != "submeshes" and (value := getattr(costs, field.name)) is not None
    }
    inside = np.array([m.is_inner for _, m in split])
    transfer = transfer[:, which][:, :, which] * np.where(inside, 0.1, 1.0)
    return StageCosts(submeshes=tuple(m for _, m in split), **arrays), transfer


def brute_force(problem, num_stages=None):
    """The cheapest stages that fit, with their T; (inf, ()) if there are none.

    From the last layer to the first, so that nothing but the sum of fills, which only grows, cuts
    it short.  Memory and T are those of `memory_bytes` and `objective_s` on whole plans.
    """
    best = (math.inf, ())

    @functools.cache
    def that_end(last, behind):
        return list(_stages_that_end(problem, last, behind))

    def visit(last, behind, stages, fill):
        """Layers up to `last` are open, and the devices before `behind`."""
        nonlocal best
        if fill >= best[0]:
            return
        if last >= 0:
            for stage, shown in that_end(last, behind):
                visit(stage.first_layer - 1, stage.first_device, [stage, *stages], fill + shown)
            return
        is_wanted = num_stages in (None, len(stages))
        is_wanted &= behind == 0 or not problem.use_all_devices
        if is_wanted and _is_allowed(problem, stages):
            total = step_time(problem, stages).total_s
            best = (total, tuple(stages)) if total < best[0] else best

    visit(problem.costs.num_layers - 1, problem.num_devices, [], 0.0)
    return best


def _is_allowed(problem, stages):
    limits = [problem.costs.submeshes[s.submesh].memory_bytes for s in stages]
    return (
        _are_fed(problem, stages)
        and problem.schedule.allows(len(stages), problem.num_microbatches)
        and all(memory_bytes(problem, stages, i) <= limits[i] for i in range(len(stages)))
    )


def _are_fed(problem, stages):
    """Whether a stage inside a host has another one of its host before it."""
    submeshes = problem.costs.submeshes
    outer = {p for m in submeshes if m.is_inner is False for p in m.starts}
    used = 0
    for stage in stages:
        submesh = submeshes[stage.submesh]
        if submesh.is_inner and used <= max(p for p in outer if p <= stage.first_device):
            return False
        used = stage.first_device + submesh.num_devices
    return True


def _stages_that_end(problem, last, behind):
    """Stages with this last layer on devices before `behind`, each with its fill."""
    costs, schedule = problem.costs, problem.schedule
    num_variants = costs.microbatch_s.shape[3]
    for first, kind, variant in itertools.product(
        range(last + 2 - schedule.chunks), range(len(costs.submeshes)), range(num_variants)
    ):
        at = (first, last, kind, variant)
        if math.isinf(costs.microbatch_s[at]):
            continue
        gather = 0.0 if costs.gather_s is None else costs.gather_s[at]
        shown = schedule.fill_s(costs.microbatch_s[at] + gather)
        for start in _starts(problem, costs.submeshes[kind], behind):
            yield (
                StageSpan(
                    first_layer=first,
                    last_layer=last,
                    submesh=kind,
                    variant=variant,
                    first_device=start,
                ),
                shown,
            )


def _starts(problem, submesh, behind):
    """First devices of a submesh that ends where the next one begins, or before it."""
    end = behind - submesh.num_devices
    if submesh.starts is None or problem.use_all_devices:
        fits = end >= 0 and (submesh.starts is None or end in submesh.starts)
        return [end] if fits else []
    return [p for p in submesh.starts if p <= end]


def check_stages(problem, stages):
    """Stages hold every layer once, are allowed where they are, and fit."""
    costs = problem.costs
    assert [s.first_layer for s in stages] == [0, *(s.last_layer + 1 for s in stages[:-1])]
    assert stages[-1].last_layer == costs.num_layers - 1
    used = 0
    for i, stage in enumerate(stages):
        submesh = costs.submeshes[stage.submesh]
        assert stage.first_device >= used
        assert submesh.starts is None or stage.first_device in submesh.starts
        used = stage.first_device + submesh.num_devices
        assert memory_bytes(problem, stages, i) <= submesh.memory_bytes
    assert used <= problem.num_devices
    if problem.use_all_devices:
        sizes = [costs.submeshes[s.submesh].num_devices for s in stages]
        assert sum(sizes) == problem.num_devices
