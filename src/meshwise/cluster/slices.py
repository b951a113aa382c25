"""Slices of TPU pods by Google's names of accelerator types, as `v5e-256`.

A slice is whole: its chips meet on one torus, so each host reaches the others at what the links
of its chips carry, and no NIC is shared.
Source: Google Cloud TPU pages v4, v5e, v5p, v6e, tables of configurations (chips, hosts, VMs).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from meshwise.cluster.catalog import HOSTS
from meshwise.cluster.host import HostGroup
from meshwise.errors import ClusterError


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceKind:
    """One generation of TPUs.

    Attributes:
        host: The name of the host in the catalog.
        cores_per_chip: Cores that the number in the name counts of a chip: 2 for TensorCores.
        max_chips: Chips of the largest slice.
        sub_host_chips: Slices of less than a host, or of one.
    """

    host: str
    cores_per_chip: int
    max_chips: int
    sub_host_chips: tuple[int, ...]


_V5E = SliceKind(host="tpu-v5e", cores_per_chip=1, max_chips=256, sub_host_chips=(1, 4, 8))
SLICES: Mapping[str, SliceKind] = MappingProxyType(
    {
        "v4": SliceKind(host="tpu-v4", cores_per_chip=2, max_chips=4096, sub_host_chips=(4,)),
        "v5e": _V5E,
        "v5litepod": _V5E,
        "v5p": SliceKind(host="tpu-v5p", cores_per_chip=2, max_chips=6144, sub_host_chips=(4,)),
        "v6e": dataclasses.replace(_V5E, host="tpu-v6e"),
    }
)
# A slice of several hosts is served by machines of four chips in every generation.
_CHIPS_PER_HOST = 4


def slice_group(name: str) -> HostGroup | None:
    """Return the hosts of a slice; None if the text is not written like the name of one.

    Raises:
        ClusterError: there is no slice of that size.
    """
    match = re.fullmatch(r"(?:tpu-)?(v4|v5e|v5litepod|v5p|v6e)-(\d{1,9})", name.lower())
    if match is None:
        return None
    kind = SLICES[match[1]]
    chips, odd = divmod(int(match[2]), kind.cores_per_chip)
    is_small = chips in kind.sub_host_chips
    if odd or not (is_small or (chips > 8 or kind.cores_per_chip == 2)) or chips > kind.max_chips:
        raise ClusterError(_no_slice(name, kind))
    if not is_small and (chips % _CHIPS_PER_HOST or not chips):
        raise ClusterError(_no_slice(name, kind))
    host = HOSTS[kind.host]
    per_host = chips if is_small else _CHIPS_PER_HOST
    host = dataclasses.replace(host, num_devices=per_host, num_nics=per_host)
    return HostGroup(count=chips // per_host, host=host)


def _no_slice(name: str, kind: SliceKind) -> str:
    first = ", ".join(str(chips * kind.cores_per_chip) for chips in kind.sub_host_chips)
    counted = "chips" if kind.cores_per_chip == 1 else "TensorCores, two a chip"
    step = _CHIPS_PER_HOST * kind.cores_per_chip
    return (
        f"no TPU slice {name!r}; its number counts {counted}: {first}, or a multiple of {step} up "
        f"to {kind.max_chips * kind.cores_per_chip}"
    )
