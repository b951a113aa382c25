"""XLA:TPU as a target."""

from __future__ import annotations

from dataclasses import replace

from meshwise.memory.gpu.target import GPU

# Fusion by traffic and the least of several orders tell most of what XLA:TPU does, too
# (docs/measurements/target_memory.md).  Not modelled: arrays in the memory of a core (VMEM), and
# tiles that fill up dims.
TPU = replace(GPU, name="tpu")
