"""Settings times methods, one after the other; what is known is not planned again."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from datetime import UTC, datetime

from evaluation.paper.methods import METHODS, Work
from evaluation.paper.result import Answer, Result
from evaluation.paper.settings import Setting
from evaluation.paper.store import Store, code_digest, key_of
from evaluation.paper.work import paper_flop
from evaluation.steps import layers_of_model
from meshwise.errors import MeshwiseError
from meshwise.inter.cost_table.variant_costs import VariantCosts
from meshwise.inter.search.search_space import SearchOptions
from meshwise.schedules.one_f_one_b import ONE_F_ONE_B
from meshwise.system.collector import collection_paused

Report = Callable[[str], object]


def result_key(setting: Setting, method: str) -> str:
    """Return what the result of a method in a setting depends on."""
    return key_of(
        setting.config,
        setting.cluster,
        setting.batch,
        setting.microbatches,
        setting.blocks,
        method,
    )


def run(
    setting: Setting, methods: Sequence[str], store: Store, report: Report = lambda _: None
) -> Generator[Result]:
    """Yield the results of methods in a setting; each is saved as soon as it is there.

    Args:
        setting: What is planned.
        methods: Of `methods.METHODS`.
        store: Where results are kept and found.
        report: Is told of progress.
    """
    work: Work | str | None = None
    tracing_s = 0.0
    for method in methods:
        key = result_key(setting, method)
        known = store.find(setting.name, method, key)
        if known is not None:
            report(f"{method}: known")
            yield known
            continue
        if work is None:
            report("tracing")
            start = time.perf_counter()
            work = _work(setting)
            tracing_s = time.perf_counter() - start
        start, start_cpu = time.perf_counter(), time.process_time()
        answer = _answered(method, work, report)
        result = Result(
            key=key,
            setting=setting.name,
            method=method,
            num_devices=setting.num_devices,
            flop=paper_flop(setting.config, setting.batch),
            microbatches=setting.microbatches,
            answer=answer,
            tracing_s=tracing_s,
            planning_s=time.perf_counter() - start,
            planning_cpu_s=time.process_time() - start_cpu,
            code=code_digest(),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        store.save(result)
        yield result


def _work(setting: Setting) -> Work | str:
    """Return what is to be planned, or why it cannot be cut into layers."""
    try:
        with collection_paused():
            layers, flop = layers_of_model(setting.config, setting.batch, blocks=setting.blocks)
    except MeshwiseError as error:
        return str(error)
    options = SearchOptions(
        batch_size=setting.batch,
        step_flop=flop,
        num_microbatches=setting.microbatches,
        # One schedule for all that is compared, as in the paper.
        schedules=(ONE_F_ONE_B,),
    )
    costs = VariantCosts(layers, options.intra)
    return Work(layers=layers, cluster=setting.cluster, options=options, costs=costs)


def _answered(method: str, work: Work | str, report: Report) -> Answer:
    if isinstance(work, str):
        return Answer.nothing(work)
    try:
        with collection_paused():
            return METHODS[method](work, lambda text: report(f"{method}: {text}"))
    except MeshwiseError as error:
        return Answer.nothing(str(error))
