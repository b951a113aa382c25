"""The plan on the cluster: hosts with their devices, coloured by stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshwise.cluster.spec import ClusterSpec
from meshwise.plan.places import placed
from meshwise.plan.plan import Plan
from meshwise.plan.text.device_memory import MemoryCheck
from meshwise.report.html.markup import WIDTH, escaped, label, picture, rect, stage_class
from meshwise.simulate.stage_pipeline import one_a_mesh
from meshwise.units import counted

_SIZE, _GAP, _PAD, _HEAD = 26, 4, 9, 22
_DEVICES_A_ROW = 8
_LEAST_A_ROW = 5
_SPACE = 12
# In a square there is room for so many numbers of stages.
_MOST_NUMBERS = 2
# With more hosts, neighbours on which the same stages lie in the same way are drawn as one.
_SINGLE_HOSTS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hosts:
    """Hosts that are drawn as one: the first and the last of them, and what is on each."""

    first: int
    last: int
    name: str
    stages: tuple[int | None, ...]

    @property
    def text(self) -> str:
        if self.first == self.last:
            return f"host {self.first}"
        return f"hosts {self.first}-{self.last}, each"


def cluster_map(plan: Plan, check: MemoryCheck) -> str:
    """Return the section of the page; devices of stages that do not fit are red."""
    cluster = plan.cluster
    assert cluster is not None  # the page has no map without one
    hosts = _hosts(plan, cluster)
    rows = [_HEAD + _rows(h) * (_SIZE + _GAP) + 2 * _PAD for h in hosts]
    each = max(_width(h) for h in hosts) + _SPACE
    a_row = max(1, (WIDTH + _SPACE) // each)
    parts: list[str] = []
    y = 0.0
    for start in range(0, len(hosts), a_row):
        for k, host in enumerate(hosts[start : start + a_row]):
            parts += _host(host, k * each, y, rows[start + k], plan, check.too_large)
        y += max(rows[start : start + a_row]) + _SPACE
    used = sum(stage.num_devices for stage in one_a_mesh(plan.stages))
    description = "; ".join(
        f"stage {k} on devices {s.first_device} to {s.first_device + s.num_devices - 1}"
        for k, s in enumerate(plan.stages)
    )
    idle = cluster.num_devices - used
    return (
        "<h2>On the cluster</h2>"
        f"<p>{escaped(cluster.name)}: {counted(cluster.num_hosts, 'host')}, "
        f"{counted(cluster.num_devices, 'device')}. Each square is a device"
        + (" with the number of its stage" if len(plan.stages) > 1 else "")
        + (", or of its stages" if len(plan.stages) > plan.num_meshes else "")
        + ("; red where the stage does not fit" if check.too_large else "")
        + (f"; {counted(idle, 'device')} without a stage" if idle else "")
        + '.</p><div class="wide">'
        + picture("cluster", "Stages on the devices of the cluster", description, (WIDTH, y), parts)
        + "</div>"
    )


def _hosts(plan: Plan, cluster: ClusterSpec) -> list[_Hosts]:
    owner: dict[tuple[int, int], int] = {}
    for number, stage in enumerate(plan.stages):
        place = placed(stage, cluster)
        for host in place.hosts:
            for device in range(place.first_device, place.first_device + place.num_devices):
                owner.setdefault((host, device), number)
    found: list[_Hosts] = []
    for host in range(cluster.num_hosts):
        kind = cluster.host_at(host)
        stages = tuple(owner.get((host, device)) for device in range(kind.num_devices))
        new = _Hosts(first=host, last=host, name=kind.name, stages=stages)
        if cluster.num_hosts > _SINGLE_HOSTS and found:
            last = found[-1]
            if (last.name, last.stages) == (new.name, new.stages):
                found[-1] = _Hosts(first=last.first, last=host, name=new.name, stages=stages)
                continue
        found.append(new)
    return found


def _columns(host: _Hosts) -> int:
    return max(min(_DEVICES_A_ROW, len(host.stages)), _LEAST_A_ROW)


def _rows(host: _Hosts) -> int:
    return -(-len(host.stages) // _columns(host))


def _width(host: _Hosts) -> int:
    return _columns(host) * (_SIZE + _GAP) - _GAP + 2 * _PAD


def _host(
    host: _Hosts,
    x: float,
    y: float,
    height: float,
    plan: Plan,
    too_large: Sequence[int],
) -> Sequence[str]:
    parts = [
        rect((x + 0.5, y + 0.5, _width(host), height - 1), "box", host.name, 6),
        label(x + _PAD, y + _PAD + 10, host.text),
    ]
    if plan.cluster is not None and plan.cluster.is_mixed:
        short = host.name if len(host.name) <= 18 else host.name[:17] + "…"
        parts.append(label(x + _width(host) - _PAD, y + _PAD + 10, short, "m e"))
    for device, stage in enumerate(host.stages):
        row, column = divmod(device, _columns(host))
        left = x + _PAD + column * (_SIZE + _GAP)
        top = y + _HEAD + _PAD + row * (_SIZE + _GAP)
        where = f"{host.text}, device {device}: "
        if stage is None:
            parts.append(rect((left, top, _SIZE, _SIZE), "free", where + "no stage", 4))
            continue
        meshes = plan.mesh_of_stage
        mine = [k for k, mesh in enumerate(meshes) if mesh == meshes[stage]]
        tip = f"{where}stage {', '.join(map(str, mine))}"
        is_over = meshes[stage] in too_large
        kind, ink = ("over", "on-over c") if is_over else (stage_class(stage), "on c")
        tip += ", does not fit into its memory" if is_over else ""
        if len(mine) == 1:
            parts.append(rect((left, top, _SIZE, _SIZE), kind, tip, 4))
            parts.append(label(left + _SIZE / 2, top + 17.5, stage, ink))
        else:
            parts += _shared(mine, (left, top), "over" if is_over else "", tip)
    return parts


def _shared(
    stages: Sequence[int], corner: tuple[float, float], kind: str, tip: str
) -> Iterator[str]:
    """Yield a device of several stages: a stripe for each, with its number where there is room."""
    (left, top), width = corner, _SIZE / len(stages)
    ink = "on-over c small" if kind else "on c small"
    for k, stage in enumerate(stages):
        x = left + k * width
        yield rect((x, top, width, _SIZE), kind or stage_class(stage), tip)
        if len(stages) <= _MOST_NUMBERS:
            yield label(x + width / 2, top + 16.5, stage, ink)
