"""The trainers that there are, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from meshwise.trainers.maxtext import MaxText
from meshwise.trainers.megatron import Megatron
from meshwise.trainers.trainer import Trainer

TRAINERS: Mapping[str, Trainer] = MappingProxyType({t.name: t for t in (Megatron(), MaxText())})
