"""The graph that planning works on: frozen, JAX-free, one operator per jaxpr equation.

Operators stand in program order.  `scan`, `cond` and `while` are operators with body graphs,
which plan and lower like the outer one.  Tensor ids and operator ids are positions in the tuples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwise.graph.loops import LoopRule
from meshwise.graph.structure import Structure

# A call of a function of the host that has an effect.
HOST_CALL = "host_call"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One value.

    Attributes:
        shape: Global shape (inside the body of a scan: of one iteration).
        dtype: NumPy-style name, as `float32`.
        itemsize: Bytes of one element.
        name: For display and pins only: the argument path of an input, what
            `jax.ad_checkpoint.checkpoint_name` calls an activation, else empty.
        generated: No argument is among its ancestors (literal, iota and what follows from
            them): it is made in each layout that is wanted, never resharded.
        sharers: Number of tensors, itself included, whose collectives compilers merge
            (`graph.buckets`); 0 where its own run alone.
    """

    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    name: str = ""
    generated: bool = False
    sharers: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * self.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """What an operator holds besides operands and results, only while it runs.

    Attributes:
        num_bytes: Bytes of these values, of the whole operator, without blocks.
        share: Share of its part of them that a device holds at a time.
        traffic_bytes: Bytes that the whole operator writes and reads, besides reading each operand
            and writing each result once; a device has its share of them.
        whole_bytes: Bytes, of the whole operator, of values of which a device holds its whole part
            at once.
        loops: The loops whose parts divide what a device holds; None: all.
        unsplit_traffic_bytes: More bytes that the whole operator writes and reads; only the parts
            of `traffic_loops` divide them among devices.
        traffic_loops: These loops.
        strip_traffic_bytes: Bytes of matrices and sums that all strips of rows together read and
            write, if each strip has the most rows; a device has its share, but at least its part of
            `least_strip_traffic_bytes`.
        least_strip_traffic_bytes: Bytes where groups have few strips; divided like
            `unsplit_traffic_bytes`.
        row_bytes: Of `num_bytes` those of one row of a strip; 0 if it has no strips.
        matrix_bytes: Bytes of the matrices of one group and of the sums of their gradients, as far
            as the operator has them; where rows may be dispatched, held only by a device with more
            than one group.
        sum_bytes: Bytes of the sums of one group that lie beside the result, for all groups of a
            device, where rows come in rounds.
    """

    num_bytes: float
    share: float
    traffic_bytes: float
    whole_bytes: float = 0.0
    loops: tuple[int, ...] | None = None
    unsplit_traffic_bytes: float = 0.0
    traffic_loops: tuple[int, ...] = ()
    strip_traffic_bytes: float = 0.0
    least_strip_traffic_bytes: float = 0.0
    row_bytes: float = 0.0
    matrix_bytes: float = 0.0
    sum_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator.

    Attributes:
        kind: Primitive name, as `dot_general`.
        inputs: Tensor ids of the operands (a tensor may occur twice).
        outputs: Tensor ids of the results.
        rule: Its loops.
        flop: FLOP of the whole operator on the whole tensors.
        heavy: A dense product or convolution: its FLOP count as `device_flop`.
        where: The user's source line, as `model.py:88 (attention)`; display only.
        bodies: Graphs of the bodies of a `scan`, `cond` or `while`.
        structure: How operands and results are bound to them; None without bodies.
        detail: Canonical text of the parameters; equal kind, detail and shapes mean equal work.
        apart: It decides alone in planning, since its result is pinned.
        dim_orders: Of a convolution the dims of image, kernel and result in the order (batch,
            feature, space), or (results, features, space) of the kernel; empty for others.
        scratch: What it makes beside its results; None for most.
    """

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    rule: LoopRule
    flop: float
    heavy: bool = False
    where: str = ""
    bodies: tuple[Graph, ...] = ()
    structure: Structure | None = None
    detail: str = ""
    apart: bool = False
    dim_orders: tuple[tuple[int, ...], ...] = ()
    scratch: Scratch | None = None

    @property
    def has_effect(self) -> bool:
        """Whether it calls a function of the host for its effect, itself or in a body."""
        return self.kind == HOST_CALL or any(
            op.has_effect for body in self.bodies for op in body.operators
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A program on whole tensors.

    Attributes:
        tensors: All values; inputs first.
        operators: In program order; each output is defined before it is used.
        inputs: Ids of the inputs.
        outputs: Ids of the results; may repeat, may be an input or a constant.
        aliases: Pairs (position in inputs, position in outputs): the state that the step
            returns; both sides must have one layout, and the input buffer is donated.
    """

    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    aliases: tuple[tuple[int, int], ...] = ()
