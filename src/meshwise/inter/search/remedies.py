"""What would make a pipeline fit where none does: each remedy is planned before it is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from meshwise.cluster.host import HostGroup
from meshwise.cluster.spec import ClusterSpec
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.search.microbatch_counts import microbatch_counts
from meshwise.inter.search.pin_conflicts import fits
from meshwise.inter.search.search_space import SearchOptions
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.units import counted


def remedies(
    cluster: ClusterSpec,
    options: SearchOptions,
    costs: VariantCosts,
    report: Callable[[str], object] = lambda _: None,
) -> list[str]:
    """Changes, one at a time, with which there is a plan.

    Args:
        cluster: Where nothing fits.
        options: What was searched.
        costs: Plans of layers.
        report: Is told of progress.
    """
    # One number of micro-batches that works is enough, and each takes long.
    counts = [max(least_memory_counts(options, cluster.num_devices))]
    found: list[str] = []
    for text, where, asked, values in _changes(cluster, options, counts):
        report(f"would it fit with {text}?")
        if fits(where, asked, costs, values):
            found.append(text)
    return found


def least_memory_counts(options: SearchOptions, num_devices: int) -> Sequence[int]:
    """Values of B that tell whether something fits: a device need not hold more than one row.

    With fewer rows than devices, rows can no longer be split over all of them; so the smallest
    micro-batches do not always need the least.

    Args:
        options: What is searched.
        num_devices: Of the cluster.
    """
    values = microbatch_counts(options)
    if options.num_microbatches:
        return values
    return [b for b in values if options.batch_size <= b * num_devices] or values[-1:]


def _changes(
    cluster: ClusterSpec, options: SearchOptions, counts: Sequence[int]
) -> Iterator[tuple[str, ClusterSpec, SearchOptions, Sequence[int]]]:
    if "full" not in options.remats:
        yield "remat full", cluster, replace(options, remats=(*options.remats, "full")), counts
    if options.num_microbatches is not None:
        free = replace(options, num_microbatches=None)
        most = microbatch_counts(free)[-1]
        if most > max(counts):
            yield counted(most, "micro-batch"), cluster, free, [most]
    if ONE_F_ONE_B not in options.schedules:
        yield "schedule 1f1b", cluster, replace(options, schedules=(ONE_F_ONE_B,)), counts
    if options.num_stages is not None:
        yield (
            "a number of stages of its own choice",
            cluster,
            replace(options, num_stages=None),
            counts,
        )
    if options.use_all_devices or (options.use_all_devices is None and not cluster.is_mixed):
        yield "idle devices", cluster, replace(options, use_all_devices=False), counts
    groups = tuple(HostGroup(count=2 * g.count, host=g.host) for g in cluster.groups)
    twice = ClusterSpec(name=f"twice {cluster.name}", groups=groups)
    yield f"twice the hosts ({twice.num_hosts})", twice, options, counts
