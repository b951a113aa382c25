"""Pins: what the user fixes or forbids; the optimiser fills the rest.

A pattern names arguments by their paths, as `0/params/**/kernel`, or activations by the names that
`jax.ad_checkpoint.checkpoint_name` gave them, as `activation:mlp_hidden`.
"""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import PartitionSpec

from meshwise.cluster.mesh import LogicalMesh
from meshwise.errors import PinError
from meshwise.graph.graph import Graph, Operator
from meshwise.graph.layout import Layout, used_axes
from meshwise.graph.loops import Strategy, enumerate_strategies
from meshwise.intra.candidates import whole_layouts
from meshwise.intra.options import OperatorPath
from meshwise.intra.shapes import strategy_layouts
from meshwise.units import counted

ACTIVATION = "activation:"
# Before a path that is no pattern; no path of an argument begins so.
EXACTLY = "="

# A key in brackets, as Python writes it.
_KEY = re.compile(r"\[(['\"]?)([^\[\]'\"]+)\1\]")
# Names that an error lists.
_LISTED = 8


@dataclass(frozen=True, slots=True)
class Pin:
    """What is fixed about a tensor.

    Attributes:
        spec: A `PartitionSpec`: for each dim the axis or axes that split it, None for a dim that
            is not split, `PartitionSpec.UNCONSTRAINED` for a dim that is left to the optimiser.
            Dims behind its end are not split.  None leaves all dims to the optimiser.
        forbid: Mesh axes that may not split the tensor.
    """

    spec: PartitionSpec | None = None
    forbid: tuple[str, ...] | str = ()

    def __post_init__(self) -> None:
        spec: object = self.spec
        if spec is not None and not isinstance(spec, PartitionSpec):
            raise PinError(
                f"Pin(spec={spec!r:.60}): spec must be a jax.sharding.PartitionSpec, as "
                "P('x', None), or None to fix nothing"
            )
        forbid: Any = (self.forbid,) if isinstance(self.forbid, str) else self.forbid
        if not isinstance(forbid, (tuple, list, frozenset, set)) or not all(
            isinstance(axis, str) for axis in forbid
        ):
            raise PinError(
                f"Pin(forbid={forbid!r:.60}): forbid must be the name of a mesh axis or a tuple of "
                "such names, as ('y',)"
            )
        object.__setattr__(self, "forbid", tuple(forbid))


def as_pin(pattern: str, value: object) -> Pin:
    """Return a value of the option `pins` as a `Pin`.

    Args:
        pattern: The pattern that it stands for, for messages.
        value: A `Pin` or a `PartitionSpec`.

    Returns:
        The pin.

    Raises:
        PinError: it is neither a `Pin` nor a `PartitionSpec`.
    """
    if isinstance(value, Pin):
        return value
    if isinstance(value, PartitionSpec):
        return Pin(value)
    raise PinError(
        f"pin {pattern!r} is {value!r:.60} ({type(value).__name__}); a pin is a "
        "jax.sharding.PartitionSpec, as P('x', None), or a mw.Pin, as mw.Pin(forbid='y')"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """Pins held against a graph and a mesh.

    Attributes:
        graph: The graph, in which operators whose results are pinned decide alone.
        layouts: Layouts that inputs may have, by position.
        strategies: Strategies that naming operators may have.
    """

    graph: Graph
    layouts: Mapping[int, tuple[Layout, ...]]
    strategies: Mapping[OperatorPath, frozenset[Strategy]]


@dataclass(frozen=True, slots=True)
class _Wish:
    """One pin on one mesh: per dim its axes, None where it is free; axes of size 1 are left out."""

    pattern: str
    pin: Pin
    dims: tuple[tuple[int, ...] | None, ...] | None
    forbid: frozenset[int]

    def fits(self, layout: Layout) -> bool:
        if not self.forbid.isdisjoint(used_axes(layout)):
            return False
        if self.dims is None:
            return True
        wanted = (*self.dims, *((),) * (len(layout.dims) - len(self.dims)))
        return all(w is None or w == axes for w, axes in zip(wanted, layout.dims, strict=True))

    def exact(self, rank: int) -> Layout | None:
        """Return the layout, if the pin leaves no choice."""
        dims = () if self.dims is None else self.dims
        if (self.dims is None and rank) or None in dims:
            return None
        return Layout((*(d for d in dims if d is not None), *((),) * (rank - len(dims))))

    @property
    def here(self) -> str:
        return f"pin {self.pattern!r}: {spec_text(self.pin.spec)}"

    @property
    def text(self) -> str:
        return f"{self.pattern!r}: {_pin_text(self.pin)}"


def pinned(graph: Graph, pins: Mapping[str, object], mesh: LogicalMesh) -> Pinned:
    """Hold pins against a graph and a mesh.

    Args:
        graph: The graph.
        pins: Pattern -> `Pin` or `PartitionSpec`.
        mesh: The mesh whose axes they name.

    Raises:
        PinError: a pattern names nothing, an axis is unknown or used twice, a dim is not
            divisible, a pin has too many dims, or two pins contradict each other.
    """
    wishes = [_wish(pattern, as_pin(pattern, pin), mesh) for pattern, pin in pins.items()]
    names = [graph.tensors[ident].name for ident in graph.inputs]
    named = list(named_operators(graph))
    hit: set[str] = set()

    def of(name: str, activation: bool) -> list[_Wish]:
        found = [w for w in wishes if is_hit(w.pattern, name, activation)]
        hit.update(w.pattern for w in found)
        return found

    layouts: dict[int, tuple[Layout, ...]] = {}
    for position, ident in enumerate(graph.inputs):
        found = of(names[position], activation=False)
        if found:
            shape = graph.tensors[ident].shape
            candidates = whole_layouts(graph.tensors[ident].shape, mesh.sizes)
            layouts[position] = _choose(names[position], shape, found, candidates, mesh)
    strategies: dict[OperatorPath, frozenset[Strategy]] = {}
    for path, owner, op in named:
        found = of(owner.tensors[op.outputs[0]].name, activation=True)
        if found:
            strategies[path] = _strategies(owner, op, found, mesh)
    for wish in wishes:
        if wish.pattern not in hit:
            activations = sorted({owner.tensors[op.outputs[0]].name for _, owner, op in named})
            refuse_unmatched(wish.pattern, names, activations)
    return Pinned(graph=apart(graph, strategies), layouts=layouts, strategies=strategies)


def named_operators(
    graph: Graph, path: OperatorPath = ()
) -> Iterator[tuple[OperatorPath, Graph, Operator]]:
    """Yield operators of `checkpoint_name` with the graph that holds them, bodies included.

    Args:
        graph: The graph.
        path: Where it stands in another one.

    Returns:
        An iterator over path, graph and operator.
    """
    for i, op in enumerate(graph.operators):
        if op.kind == "name":
            yield (*path, i), graph, op
        for p, body in enumerate(op.bodies):
            yield from named_operators(body, (*path, i, p))


def matches(pattern: str, name: str) -> bool:
    """Return whether a path fits a pattern: `*` in a component, `**` for any number of them.

    A path fits itself, whatever its keys are.  Keys may stand in brackets, as in Python: `0/w[1]`
    and `0['w'][1]` are `0/w/1`.
    """
    forms = dict.fromkeys((pattern, _KEY.sub(r"/\2", pattern)))
    return name in forms or any(_match(form.split("/"), name.split("/")) for form in forms)


def _match(pattern: Sequence[str], name: Sequence[str]) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "**":
        return any(_match(pattern[1:], name[k:]) for k in range(len(name) + 1))
    return bool(name) and fnmatch.fnmatchcase(name[0], pattern[0]) and _match(pattern[1:], name[1:])


def is_hit(pattern: str, name: str, activation: bool) -> bool:
    """Return whether a pattern names an argument, or an activation.

    Args:
        pattern: The pattern of a pin.
        name: Path of an argument, or name of an activation.
        activation: Which of the two it is.
    """
    if pattern.startswith(EXACTLY):
        return not activation and pattern[len(EXACTLY) :] == name
    if pattern.startswith(ACTIVATION) != activation:
        return False
    return matches(pattern.removeprefix(ACTIVATION), name)


def check_rank(pattern: str, pin: Pin, name: str, shape: Sequence[int]) -> None:
    """Check that a tensor has as many dims as a pin names.

    Args:
        pattern: The pattern of the pin.
        pin: The pin.
        name: What messages call the tensor.
        shape: The shape of the tensor.

    Raises:
        PinError: the pin has more entries.
    """
    if pin.spec is not None and len(pin.spec) > len(shape):
        raise PinError(
            f"pin {pattern!r}: {spec_text(pin.spec)} has {counted(len(pin.spec), 'dim')}, but "
            f"{name} has shape {list(shape)}, {counted(len(shape), 'dim')}; give at most so many "
            "entries, or a pattern that does not match it"
        )


def check_arguments(
    pins: Mapping[str, object],
    arguments: Sequence[tuple[str, Sequence[int]]],
    meshes: Sequence[LogicalMesh],
    *,
    divides: bool = True,
) -> None:
    """Check pins against arguments, before anything is planned.

    An axis of size 1 keeps every pin, but that is not what a pin asks for: for each axis that it
    names there must be a mesh on which the axis is larger and the argument is divided.

    Args:
        pins: Pattern -> `Pin` or `PartitionSpec`.
        arguments: Path and shape of each.
        meshes: The meshes that may be taken.
        divides: Whether an axis must be larger than 1 somewhere.

    Raises:
        PinError: a pin has more entries than an argument has dims, is wrong in itself, or divides
            an argument on no mesh where its axis is larger than 1.
    """
    for pattern, value in pins.items():
        pin = as_pin(pattern, value)
        fitting = meshes_with_axes(meshes, {pattern: pin})
        wishes = [(mesh, _wish(pattern, pin, mesh)) for mesh in fitting]
        for name, shape in arguments:
            if not is_hit(pattern, name, activation=False):
                continue
            check_rank(pattern, pin, name, shape)
            for axis in _axes(pin.spec) if divides else ():
                larger = [(mesh, wish) for mesh, wish in wishes if mesh.shape[axis] > 1]
                if larger and all(_undivided(wish, shape, mesh) for mesh, wish in larger):
                    tried = list(dict.fromkeys(str(mesh.shape) for mesh, _ in larger))
                    more = ", ..." if len(tried) > _LISTED else ""
                    raise PinError(
                        f"pin {pattern!r}: {spec_text(pin.spec)} divides {name} of shape "
                        f"{list(shape)} on no mesh of the cluster where {axis!r} is larger than 1: "
                        f"{', '.join(tried[:_LISTED])}{more}; pin another dim, pad this one, or "
                        f"take {axis!r} out of the pin"
                    )


def meshes_with_axes(
    meshes: Sequence[LogicalMesh], pins: Mapping[str, object]
) -> list[LogicalMesh]:
    """Return the meshes that have each axis that pins name.

    Args:
        meshes: The meshes that may be taken.
        pins: Pattern -> `Pin` or `PartitionSpec`.

    Raises:
        PinError: no mesh has an axis.
    """
    known = list(dict.fromkeys(name for mesh in meshes for name in mesh.names))
    wanted: set[str] = set()
    for pattern, value in pins.items():
        pin = as_pin(pattern, value)
        for axis in (*_axes(pin.spec), *pin.forbid):
            if axis not in known:
                has = "the mesh has" if len(meshes) == 1 else "the meshes have"
                raise _unknown_axis(pattern, axis, has, known)
            wanted.add(axis)
    return [mesh for mesh in meshes if wanted.issubset(mesh.names)]


def _axes(spec: PartitionSpec | None) -> Iterator[str]:
    """Yield the axes of a spec."""
    for entry in spec or ():
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, tuple):
            yield from entry


def _unknown_axis(pattern: str, axis: object, has: str, known: Sequence[str]) -> PinError:
    near = difflib.get_close_matches(str(axis), known, 1)
    return PinError(
        f"pin {pattern!r} names axis {axis!r}, {has} {list(known)}"
        + (f"; did you mean {near[0]!r}?" if near else "; use one of these")
    )


def _wish(pattern: str, pin: Pin, mesh: LogicalMesh) -> _Wish:
    known = list(mesh.names)

    def number(axis: str) -> int:
        if axis not in known:
            raise _unknown_axis(pattern, axis, "the mesh has", known)
        return known.index(axis)

    forbid = frozenset(number(axis) for axis in pin.forbid)
    if pin.spec is None:
        return _Wish(pattern, pin, None, forbid)
    here = f"pin {pattern!r}: {spec_text(pin.spec)}"
    dims: list[tuple[int, ...] | None] = []
    used: list[int] = []
    for entry in pin.spec:
        if entry is PartitionSpec.UNCONSTRAINED:
            dims.append(None)
            continue
        axes = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
        numbers = [number(axis) for axis in axes]
        for axis in numbers:
            if axis in used:
                raise PinError(
                    f"{here} uses axis {known[axis]!r} twice; an axis splits at most one dim of a "
                    "tensor, and once"
                )
            if axis in forbid:
                raise PinError(
                    f"{here} uses axis {known[axis]!r}, which the same pin forbids; take it out "
                    "of one of them"
                )
            used.append(axis)
        dims.append(tuple(a for a in numbers if mesh.sizes[a] > 1))
    return _Wish(pattern, pin, tuple(dims), forbid)


def _choose(
    name: str,
    shape: tuple[int, ...],
    wishes: Sequence[_Wish],
    candidates: Sequence[Layout],
    mesh: LogicalMesh,
) -> tuple[Layout, ...]:
    """Return the candidates that all pins of a tensor allow."""
    left = tuple(candidates)
    for wish in wishes:
        _check_shape(wish, name, shape, mesh)
        exact = wish.exact(len(shape))
        if exact is not None:
            left = (exact,)  # also one that no optimiser would try, as axes out of order
    for wish in wishes:
        left = tuple(layout for layout in left if wish.fits(layout))
        if not left:
            others = " and ".join(w.text for w in wishes if w is not wish)
            raise PinError(
                f"pin {wish.text} contradicts {others} at {name} of shape {list(shape)}; let only "
                "one of the patterns match it, or make them agree"
            )
    return left


def _check_shape(wish: _Wish, name: str, shape: tuple[int, ...], mesh: LogicalMesh) -> None:
    check_rank(wish.pattern, wish.pin, name, shape)
    if undivided := _undivided(wish, shape, mesh):
        dim, parts = undivided
        raise PinError(
            f"{wish.here} does not divide {name} of shape "
            f"{list(shape)}: dim {dim} of size {shape[dim]} in {parts} parts on the mesh "
            f"{mesh.shape}; pin another dim, or pad it"
        )


def _undivided(wish: _Wish, shape: Sequence[int], mesh: LogicalMesh) -> tuple[int, int] | None:
    """Return the first dim that a pin does not divide, and in how many parts; None if it does."""
    for dim, axes in enumerate(wish.dims or ()):
        parts = math.prod(mesh.sizes[a] for a in axes or ())
        if shape[dim] % parts:
            return dim, parts
    return None


def _strategies(
    graph: Graph, op: Operator, wishes: Sequence[_Wish], mesh: LogicalMesh
) -> frozenset[Strategy]:
    """Return the strategies of a naming operator whose result lies as its pins say."""
    tensor = graph.tensors[op.outputs[0]]
    name = ACTIVATION + tensor.name
    if tensor.generated:
        raise PinError(
            f"pin {wishes[0].pattern!r} matches {name} at {op.where}, which depends on no "
            "argument: such a value is made in every layout that is wanted; remove the pin"
        )
    found: dict[Layout, Strategy] = {}
    for strategy in enumerate_strategies(op.rule, mesh.sizes):
        layouts = strategy_layouts(op, strategy, mesh.sizes)
        split_by_one = any(
            size == 1 and choice != -1 for size, choice in zip(mesh.sizes, strategy, strict=True)
        )
        if layouts is not None and not layouts[1][0].partial and not split_by_one:
            found[layouts[1][0]] = strategy
    for wish in wishes:
        for axes in wish.dims or ():
            if axes is not None and list(axes) != sorted(axes):
                order = tuple(mesh.names[a] for a in sorted(axes))
                raise PinError(
                    f"{wish.here} splits a dim of an activation over "
                    f"axes out of the order of the mesh; write {order}"
                )
    allowed = _choose(name, tensor.shape, wishes, tuple(found), mesh)
    return frozenset(found[layout] for layout in allowed)


def apart(
    graph: Graph, strategies: Mapping[OperatorPath, object], path: OperatorPath = ()
) -> Graph:
    """Return the graph with the operators at some paths marked as deciding alone.

    Args:
        graph: The graph.
        strategies: What is known of these operators, by path.
        path: Where the graph stands in another one.
    """
    if not strategies:
        return graph
    operators: list[Operator] = []
    for i, op in enumerate(graph.operators):
        here = (*path, i)
        inside = {p: s for p, s in strategies.items() if p[: len(here)] == here}
        if here in inside:
            op = dataclasses.replace(op, apart=True)
        elif inside and op.bodies:
            bodies = (apart(body, inside, (*here, p)) for p, body in enumerate(op.bodies))
            op = dataclasses.replace(op, bodies=tuple(bodies))
        operators.append(op)
    return dataclasses.replace(graph, operators=tuple(operators))


def nearest(name: str, known: Sequence[str], count: int) -> list[str]:
    """Return the known names that look most like a name, the nearest first.

    Args:
        name: A name that nothing has.
        known: The names that there are.
        count: The most names to return.
    """
    return difflib.get_close_matches(name, known, count, cutoff=0.0)


def refuse_unmatched(pattern: str, names: Sequence[str], activations: Sequence[str]) -> None:
    """Say what a pattern may have meant.

    Args:
        pattern: A pattern that names nothing.
        names: Paths of the arguments.
        activations: Names of the activations.

    Raises:
        PinError: always.
    """
    if pattern.startswith(ACTIVATION):
        known = [ACTIVATION + name for name in activations]
        what, does = "activation", "has none: name one with jax.ad_checkpoint.checkpoint_name"
    else:
        known = list(names)
        what, does = "argument", "has none"
    near = nearest(pattern, known, _LISTED)
    more = ", ..." if len(known) > len(near) else ""
    if not pattern.startswith((ACTIVATION, "*", *map(str, range(10)))):
        more += "; a path begins with the number of the argument"
    raise PinError(
        f"pin {pattern!r} names no {what}; "
        + (f"the nearest are {', '.join(near)}{more}" if known else f"the step {does}")
    )


def spec_text(spec: PartitionSpec | None) -> str:
    """Return a spec as text, as `P('x', None)`, whatever the version of JAX."""
    if spec is None:
        return "None"
    free = PartitionSpec.UNCONSTRAINED
    return f"P({', '.join('P.UNCONSTRAINED' if e is free else repr(e) for e in spec)})"


def _pin_text(pin: Pin) -> str:
    if not pin.forbid:
        return spec_text(pin.spec)
    spec = "" if pin.spec is None else f"{spec_text(pin.spec)}, "
    return f"Pin({spec}forbid={pin.forbid})"
