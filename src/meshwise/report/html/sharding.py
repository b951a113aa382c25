"""How the state of each layer lies on its mesh, equal layers once.

Source: the manner of figures 12 and 13 of the Alpa paper: for every layer and every tensor the
dims that are split, coloured by the mesh axis that splits them.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from meshwise.cluster.mesh import LogicalMesh
from meshwise.graph.layout import Layout, num_parts
from meshwise.plan.counts.contents import pattern
from meshwise.plan.plan import Plan
from meshwise.plan.record import ONE_PROGRAM
from meshwise.plan.spelling import spelled
from meshwise.plan.stage import Layer, Stage
from meshwise.plan.text.columns import ranges_text
from meshwise.report.html.markup import (
    WIDTH,
    escaped,
    html_table,
    label,
    legend,
    picture,
    rect,
    stage_class,
)
from meshwise.units import counted, plural

AXIS_COLOURS = ("var(--axis0)", "var(--axis1)", "var(--axis2)", "var(--axis3)")
_GLYPH_WIDTH, _GLYPH_HEIGHT = 42, 24
_MOST_LINES = 8
_STRIP = 26
EXPLAINED = (
    "A dim that is split carries the mesh axis that splits it; all others are whole on every "
    "device. In the picture the last dim goes from left to right, and all others from top to "
    "bottom; the part that one device holds is filled."
)


# The name of an argument and its keys, a shape and a layout.
NamedTensor: TypeAlias = tuple[tuple[str, ...], tuple[int, ...], Layout]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTensor:
    """Tensors of one shape that lie in one way.

    Attributes:
        name: Their name as the user writes it, or the part of it that they share.
        heads: What stands before it, where there are several.
        shape: Shape of each.
        layout: Layout of each.
    """

    name: str
    heads: tuple[str, ...]
    shape: tuple[int, ...]
    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """Layers whose state lies in one way.

    Attributes:
        letters: How the page calls it.
        mesh: Their mesh, or one that is as large.
        tensors: Their state; what differs in names is left open.
        places: Pairs (stage, layer).
    """

    letters: str
    mesh: LogicalMesh
    tensors: tuple[ShownTensor, ...]
    places: tuple[tuple[int, int], ...]


def sharding_section(plan: Plan) -> str:
    """Return the section of the page."""
    kinds = _kinds(plan)
    if plan.schedule == ONE_PROGRAM:
        (kind,) = kinds
        return (
            f"<h2>Layout of each argument</h2><p>{EXPLAINED}</p>{_of_pins(plan)}"
            f'<section class="card">{axes_legend(kind.mesh)}{_tensors(kind)}</section>'
        )
    cards = '<div class="cards">' + "".join(_card(kind) for kind in kinds) + "</div>"
    return (
        "<h2>Layout of each layer</h2>"
        f"<p>Layers whose parameters and optimizer state lie in one way share a letter. {EXPLAINED}"
        f"</p>{_of_pins(plan)}{_tied(plan)}" + _strip(plan, kinds) + cards
    )


def _tied(plan: Plan) -> str:
    if not plan.tied:
        return ""
    spelling = dict(plan.spelling)
    names = ", ".join("".join(spelled(name, spelling)) for name in plan.tied)
    return f"<p>Parameters that several layers read: {escaped(names)}.</p>"


def _of_pins(plan: Plan) -> str:
    """Return how a pin names what the page names otherwise, with the longest path as example."""
    paths = [x.name for stage in plan.stages for x in stage.arguments]
    if not plan.spelling or not paths:
        return ""
    path = max(paths, key=len)
    name = "".join(spelled(path, dict(plan.spelling)))
    return (
        f"<p>Names are written as in the step. Pins, and the text below, write paths: <code>"
        f"{escaped(path)}</code> is <code>{escaped(name)}</code>.</p>"
    )


def _kinds(plan: Plan) -> list[LayerKind]:
    spelling = dict(plan.spelling)
    groups: dict[object, list[tuple[int, Stage, Layer]]] = {}
    for number, stage in enumerate(plan.stages):
        for layer in stage.layers:
            inputs = tuple((pattern(x.name), x.shape, x.layout) for x in layer.arguments)
            key = (stage.mesh.sizes, stage.mesh.names, inputs)
            groups.setdefault(key, []).append((number, stage, layer))
    return [
        LayerKind(
            letters=_letters(k),
            mesh=found[0][1].mesh,
            tensors=folded(_inputs([layer for _, _, layer in found], spelling)),
            places=tuple((number, layer.layer) for number, _, layer in found),
        )
        for k, found in enumerate(groups.values())
    ]


def _inputs(layers: Sequence[Layer], spelling: Mapping[str, str]) -> list[NamedTensor]:
    """Return the inputs of layers that differ at most in the numbers of their names."""
    if len(layers) == 1:
        return _together(layers[0], spelling)
    names = zip(*([x.name for x in layer.arguments] for layer in layers), strict=True)
    return [
        (common_name([spelled(name, spelling) for name in same]), x.shape, x.layout)
        for same, x in zip(names, layers[0].arguments, strict=True)
    ]


def _together(layer: Layer, spelling: Mapping[str, str]) -> list[NamedTensor]:
    """Return arguments of a layer; those that differ only in a number of their name are one."""
    groups: dict[tuple[str, tuple[int, ...], Layout], list[tuple[str, ...]]] = {}
    for k, x in enumerate(layer.arguments):
        name = spelled(x.name, spelling) if x.name else (f"input {k}",)
        key = (pattern(x.name or name[0]), x.shape, x.layout)
        groups.setdefault(key, []).append(name)
    return [
        (common_name(names) + ((f" ({len(names)})",) if len(names) > 1 else ()), shape, layout)
        for (_, shape, layout), names in groups.items()
    ]


def common_name(names: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return names with the numbers left open in which they differ, as `['block_*']`.

    Of names that are written in different ways the first stands for all.
    """
    if len({len(name) for name in names}) > 1:
        names = [("".join(name),) for name in names]
    return tuple(map(_common_word, zip(*names, strict=True)))


def _common_word(words: Sequence[str]) -> str:
    split = [re.split(r"(\d+)", word) for word in words]
    if len({tuple(parts[::2]) for parts in split}) > 1:
        return re.sub(r"\d+", "*", words[0])
    return "".join(p[0] if len(set(p)) == 1 else "*" for p in zip(*split, strict=True))


def _letters(number: int) -> str:
    """A, B, ..., Z, AA, AB, ..."""
    text = ""
    number += 1
    while number:
        number, digit = divmod(number - 1, 26)
        text = chr(ord("A") + digit) + text
    return text


def folded(inputs: Sequence[NamedTensor]) -> tuple[ShownTensor, ...]:
    """Return tensors with what is kept beside them: equal ends of names, shapes and layouts.

    So a parameter and its moments share a row.  What stands before the end is kept.
    """
    ends: dict[tuple[str, ...], int] = {}
    for words, _, _ in inputs:
        for start in range(len(words)):
            ends[words[start:]] = ends.get(words[start:], 0) + 1
    groups: dict[tuple[str, tuple[int, ...], Layout], list[str]] = {}
    for words, shape, layout in inputs:
        start = next((s for s in range(len(words)) if ends[words[s:]] > 1), 0)
        key = ("".join(words[start:]), shape, layout)
        groups.setdefault(key, []).append("".join(words[:start]))
    return tuple(
        ShownTensor(
            name=name if len(heads) > 1 else heads[0] + name,
            heads=tuple(heads) if len(heads) > 1 else (),
            shape=shape,
            layout=layout,
        )
        for (name, shape, layout), heads in groups.items()
    )


# -- layers in a row ------------------------------------------------------------------------------


def _strip(plan: Plan, kinds: Sequence[LayerKind]) -> str:
    """Return every layer in order, in the colour of its stage, with the letter of its kind."""
    letter = {layer: kind.letters for kind in kinds for _, layer in kind.places}
    total = plan.stages[-1].last_layer + 1
    each = min(46.0, WIDTH / total)
    parts: list[str] = []
    for number, stage in enumerate(plan.stages):
        for layer in range(stage.first_layer, stage.last_layer + 1):
            x = layer * each
            tip = f"layer {layer}, stage {number}: {letter[layer]}"
            gap = 1.5 if each > 6 else 0.3
            parts.append(rect((x, 0, each - gap, _STRIP), stage_class(number), tip, 2))
            if each >= 8 * len(letter[layer]) + 3:
                parts.append(label(x + (each - gap) / 2, 17, letter[layer], "on c"))
        middle = (stage.first_layer + stage.last_layer + 1) / 2 * each
        width = (stage.last_layer - stage.first_layer + 1) * each
        text = f"stage {number}" if width > 52 else str(number)
        if width >= 8 * len(text):
            parts.append(label(middle, _STRIP + 15, text, "m c"))
    description = "; ".join(f"{kind.letters}: {_places(kind)}" for kind in kinds)
    size = (WIDTH, _STRIP + 20)
    drawing = picture("layers", "Layers by stage and layout", description, size, parts)
    return f'<div class="wide">{drawing}</div>'


def _places(kind: LayerKind) -> str:
    """`stage 0: layers 1-5, 7; stage 1: layer 9`."""
    texts: list[str] = []
    for stage, group in itertools.groupby(kind.places, lambda place: place[0]):
        layers = [layer for _, layer in group]
        what = plural(len(layers), "layer")
        texts.append(f"stage {stage}: {what} {ranges_text(layers)}")
    return "; ".join(texts)


# -- one kind of layer ----------------------------------------------------------------------------


def _card(kind: LayerKind) -> str:
    count = len(kind.places)
    what = counted(count, "layer")
    title = f'<span class="badge kind">{kind.letters}</span> {what}'
    return (
        f'<section class="card"><h3>{title}</h3><p>{escaped(_places(kind))}</p>'
        f"{axes_legend(kind.mesh)}{_tensors(kind)}</section>"
    )


def _tensors(kind: LayerKind) -> str:
    return tensor_table(kind.tensors, kind.mesh) if kind.tensors else "<p>No state.</p>"


def axes_legend(mesh: LogicalMesh) -> str:
    """Return the axes of a mesh with their colours."""
    keys = [
        (AXIS_COLOURS[k % len(AXIS_COLOURS)], f"axis {axis.name} of {axis.size}")
        for k, axis in enumerate(mesh.axes)
        if axis.size > 1
    ]
    return legend(keys) if keys else "<p>One device.</p>"


def tensor_table(tensors: Sequence[ShownTensor], mesh: LogicalMesh) -> str:
    """Return a row for each tensor; copies that all of them have are named once, above."""
    every = {t.heads for t in tensors}
    note = ""
    if len(every) == 1 and tensors[0].heads:
        note = f"<p>Each of {escaped(', '.join(tensors[0].heads))}.</p>"
    rows = [
        (
            escaped(t.name)
            + (f"<small>of {escaped(', '.join(t.heads))}</small>" if t.heads and not note else ""),
            _glyph(t, mesh),
            "".join(
                _dim(size, axes, mesh) for size, axes in zip(t.shape, t.layout.dims, strict=True)
            )
            or "scalar",
            _share(t.layout, mesh),
        )
        for t in tensors
    ]
    return note + html_table(("tensor", "", "dims", "a device holds"), rows, "wllr")


def _dim(size: int, axes: Sequence[int], mesh: LogicalMesh) -> str:
    marks = "".join(
        f'<b style="background: {AXIS_COLOURS[a % len(AXIS_COLOURS)]}">'
        f"{escaped(mesh.axes[a].name)}</b>"
        for a in axes
    )
    return f'<span class="dim">{size}{marks}</span>'


def _share(layout: Layout, mesh: LogicalMesh) -> str:
    parts = num_parts(layout, mesh.sizes)
    return "all" if parts == 1 else f"1/{parts}"


def _glyph(tensor: ShownTensor, mesh: LogicalMesh) -> str:
    """Return the tensor as a box cut into tiles, the first of them filled."""
    parts = [math.prod(mesh.sizes[a] for a in axes) for axes in tensor.layout.dims]
    columns = parts[-1] if parts else 1
    rows = math.prod(parts[:-1])
    width, height = _GLYPH_WIDTH, _GLYPH_HEIGHT if len(parts) > 1 else _GLYPH_HEIGHT / 2
    lines = [
        *(f"M{k * width / columns:g} 0V{height}" for k in range(1, columns)),
        *(f"M0 {k * height / rows:g}H{width}" for k in range(1, rows)),
    ]
    if max(rows, columns) > _MOST_LINES:
        lines = lines[:_MOST_LINES]
    tile = rect((0, 0, width / columns, height / rows), "tile-one")
    frame = rect((0, 0, width, height), "hole")
    return (
        f'<svg class="glyph" viewBox="-1 -1 {width + 2} {height + 2:g}" aria-hidden="true">'
        f'{frame}{tile}<path class="line" d="{"".join(lines)}"/></svg>'
    )
