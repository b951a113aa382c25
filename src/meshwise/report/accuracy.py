"""How near predictions came to what was measured, for each kind of device.

Every number stands in `docs/measurements`, in the words that `Finding.quotes` repeats;
`tests/report/test_accuracy.py` reads them there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a comparison found.

    Attributes:
        says: A sentence, without its end.
        quotes: Pairs (page of `docs/measurements`, words that stand there and have the numbers).
    """

    says: str
    quotes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """How near predictions came.

    Attributes:
        devices: Parts of the names of the devices that it is about.
        memory: Of peak memory.
        time: Of a step's time.
    """

    devices: tuple[str, ...]
    memory: Finding
    time: Finding


_ON_H200 = (
    "on one H200 five of six models were predicted at 0.87 to 1.03 of the measured step, BERT at "
    "0.73 to 0.77; rates of products were fitted to these models (2026-11-26)"
)
_QUOTES_H200 = (
    ("gpu.md", "2026-11-26, one NVIDIA H200"),
    ("gpu.md", "five of six models are predicted at 0.87 to 1.03 of the measured step"),
    ("gpu.md", "BERT is predicted at 0.73 to 0.77"),
    ("gpu.md", "were fitted to these very models"),
)
_CPU = Accuracy(
    devices=("CPU",),
    memory=Finding(
        says="0.982 to 1.296 of what XLA:CPU compiles, median 1.060, in 89 programs (2026-11-24)",
        quotes=(
            ("fidelity.md", "2026-11-24 (commit 4d4f16c)"),
            ("fidelity.md", "| all 89 | 0.956 to 1.221, median 1.000 | 0.982 to 1.296, "
             "median 1.060 |"),
        ),
    ),
    time=Finding(
        says="with the file of `meshwise calibrate --hosts` 5 of 10 steps took within 15 % of what "
        "was predicted, the worst was 121 % off, and 29 of 33 pairs came in the predicted order "
        "(2026-11-26); rates of virtual CPU devices that were not calibrated are rough",
        quotes=(
            ("predictions.md", "2026-11-26, 2 cores"),
            ("predictions.md", "5 of 10 steps take within 15 % of what was predicted"),
            ("predictions.md", "the worst is 121% off"),
            ("predictions.md", "Of 33 pairs that differ by more than their noise, 29 come in the"),
        ),
    ),
)  # fmt: skip
_TABLE = (
    _CPU,
    Accuracy(
        devices=("H200",),
        memory=Finding(
            says="0.952 to 1.086 of what XLA:GPU compiles, in six models on one device, 1 and 4 "
            "micro-batches (2026-11-26)",
            quotes=(
                ("gpu.md", "2026-11-26, one NVIDIA H200"),
                ("target_memory.md", "Six models on one H200, B = 1 and 4, are predicted at 0.952 "
                 "to 1.086 of what is compiled"),
            ),
        ),
        time=Finding(
            says=f"{_ON_H200}; with a profile of `meshwise calibrate` at 0.83 to 1.26; collectives "
            "were not measured",
            quotes=(
                *_QUOTES_H200,
                ("gpu.md", "With that profile the steps above are predicted at 0.83 to 1.26"),
            ),
        ),
    ),
    Accuracy(
        devices=("H100",),
        memory=Finding(
            says="0.925 to 1.443 of what XLA:GPU compiles for H100, median error 5.9 % and 5.6 % "
            "in two draws of 28 programs (2026-11-26)",
            quotes=(
                ("target_memory.md", "`jax-cuda12-pjrt` 0.10.2, 2026-11-26"),
                ("target_memory.md", "| two orders (4431a12) | H100, seed 0 | 28 | 33 | 0.930 to "
                 "1.443 | 0 | 91% | 5.9% |"),
                ("target_memory.md", "| two orders (4431a12) | H100, seed 1 | 28 | 33 | 0.925 to "
                 "1.417 | 1 | 85% | 5.6% |"),
            ),
        ),
        time=Finding(
            says="on one H100 two models were predicted at 0.92 to 1.07 of the measured step, BERT "
            "at 0.77 to 0.83 (2026-11-27); collectives were not measured",
            quotes=(
                ("gpu.md", "2026-11-27, one NVIDIA H100"),
                ("gpu.md", "GPT and Llama are predicted at 0.92 to 1.07 of the measured step, BERT "
                 "at 0.77 to 0.83."),
            ),
        ),
    ),
    Accuracy(
        devices=("A100",),
        memory=Finding(
            says="0.964 to 1.198 of what XLA:GPU compiles for A100, median error 5.2 % in 8 "
            "programs (2026-11-26)",
            quotes=(
                ("target_memory.md", "`jax-cuda12-pjrt` 0.10.2, 2026-11-26"),
                ("target_memory.md", "| two orders (4431a12) | A100-80, seed 0, first 8 | 8 | 9 | "
                 "0.964 to 1.198 | 0 | 100% | 5.2% |"),
            ),
        ),
        time=Finding(says="not measured on this device"),
    ),
    Accuracy(
        devices=("V100",),
        memory=Finding(
            says="1.10 of what Alpa published for GPT-2.6B on 8 V100 (2026-11-22); XLA:GPU does "
            "not compile for V100",
            quotes=(
                ("anchor.md", "2026-11-22, `python -m evaluation anchor`"),
                ("anchor.md", "GPT-2.6B on one p3.16xlarge (8 V100-16GB)"),
                ("anchor.md", "| 2.787 s | 1.13 | 9.56 GB | 1.10 |"),
                ("target_memory.md", "XLA:GPU 0.10.2 refuses V100"),
            ),
        ),
        time=Finding(
            says="1.13 of the same published step, at the rate of another published run "
            "(2026-11-22); not measured by us",
            quotes=(
                ("anchor.md", "2026-11-22, `python -m evaluation anchor`"),
                ("anchor.md", "| 2.787 s | 1.13 | 9.56 GB | 1.10 |"),
            ),
        ),
    ),
    Accuracy(
        devices=("TPU v5e", "TPU v5 lite"),
        memory=Finding(
            says="0.988 to 1.181 of what XLA:TPU compiles for v5e, median error 4.9 % in 13 "
            "programs (2026-11-26)",
            quotes=(
                ("target_memory.md", "libtpu 0.0.42.1, 2026-11-26"),
                ("target_memory.md", "| its own rules | v5e, seed 0, 13 of the first 15 | 13 |"),
                ("target_memory.md", "| its own orders, too | ... | 13 | 16 | 0.988 to 1.181 | 0 | "
                 "100% | 4.9% |"),
            ),
        ),
        time=Finding(
            says="not measured by us; the computation of three steps that MaxText published is "
            "predicted 60 to 79 % longer than the steps at the rates of the catalog, and from 9 % "
            "shorter to 2 % longer with a profile of `meshwise calibrate --target v5e` "
            "(2026-11-25)",
            quotes=(
                ("target_costs.md", "2026-11-25, libtpu"),
                ("target_costs.md", "9.27 s (-7 %) | 16.24 s (+63 %)"),
                ("target_costs.md", "12.13 s (+2 %) | 21.25 s (+79 %)"),
                ("target_costs.md", "12.09 s (-9 %) | 21.18 s (+60 %)"),
            ),
        ),
    ),
    Accuracy(
        devices=("TPU v5p", "TPU v5"),
        memory=Finding(
            says="0.973 to 1.172 of what XLA:TPU compiles for v5p, median error 2.6 % in 7 "
            "programs; of others, that no rule was decided by, the worst was at 0.895 (2026-11-26)",
            quotes=(
                ("target_memory.md", "libtpu 0.0.42.1, 2026-11-26"),
                ("target_memory.md", "| its own orders, too | ... | 7 | 8 | 0.973 to 1.172 | 0 | "
                 "100% | 2.6% |"),
                ("target_memory.md", "| llama-8b, float32, remat, DataParallel | 0.895 |"),
            ),
        ),
        time=Finding(says="not measured on this device"),
    ),
)  # fmt: skip
_UNKNOWN = Finding(says="not compared on this device")


def accuracy_of(device: str) -> Accuracy:
    """Return how near predictions for a device came.

    Args:
        device: Its name, in the catalog or as a driver reports it.
    """
    for row in _TABLE:
        if any(part in device for part in row.devices):
            return row
    return Accuracy(devices=(device,), memory=_UNKNOWN, time=_UNKNOWN)
