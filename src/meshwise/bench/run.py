"""Settings times methods, one after the other; what is known is not planned again."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from datetime import UTC, datetime

from meshwise.bench.methods import METHODS, Work
from meshwise.bench.result import Answer, Result
from meshwise.bench.settings import Setting
from meshwise.bench.steps import layers_of_model
from meshwise.bench.store import Store, code_digest, key_of
from meshwise.bench.work import paper_flop
from meshwise.collector import collection_paused
from meshwise.errors import MeshwiseError
from meshwise.inter.search import SearchOptions
from meshwise.trace.layers.layering import Layering

Report = Callable[[str], object]


def result_key(setting: Setting, method: str) -> str:
    """What the result of a method in a setting depends on."""
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
    """The results of methods in a setting; each is saved as soon as it is there.

    Args:
        setting: What is planned.
        methods: Of `methods.METHODS`.
        store: Where results are kept and found.
        report: Is told of progress.
    """
    source: tuple[Layering, float] | str | None = None
    tracing_s = 0.0
    for method in methods:
        key = result_key(setting, method)
        known = store.find(setting.name, method, key)
        if known is not None:
            report(f"{method}: known")
            yield known
            continue
        if source is None:
            report("tracing")
            start = time.perf_counter()
            source = _layers(setting)
            tracing_s = time.perf_counter() - start
        start, start_cpu = time.perf_counter(), time.process_time()
        answer = _answered(setting, method, source, report)
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


def _layers(setting: Setting) -> tuple[Layering, float] | str:
    """The layers and the FLOP of the forward pass, or why there are none."""
    try:
        with collection_paused():
            return layers_of_model(setting.config, setting.batch, blocks=setting.blocks)
    except MeshwiseError as error:
        return str(error)


def _answered(
    setting: Setting, method: str, source: tuple[Layering, float] | str, report: Report
) -> Answer:
    if isinstance(source, str):
        return Answer.nothing(source)
    layers, step_flop = source
    options = SearchOptions(
        batch_size=setting.batch, step_flop=step_flop, num_microbatches=setting.microbatches
    )
    work = Work(layers=layers, cluster=setting.cluster, options=options)
    try:
        with collection_paused():
            return METHODS[method](work, lambda text: report(f"{method}: {text}"))
    except MeshwiseError as error:
        return Answer.nothing(str(error))
