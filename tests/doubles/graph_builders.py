"""Graphs written by hand, without JAX."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from meshwise.cluster.mesh import DeviceSpec, LogicalMesh, MeshAxis
from meshwise.graph.graph import Graph, Operator, Tensor
from meshwise.graph.layout import SUM
from meshwise.graph.loops import DimMap, Loop, LoopRule
from meshwise.graph.structure import scan_structure

LINEAR = {"add": ((0, 1),), "sub": ((0, 1),), "neg": ((0,),), "mul": ((0,), (1,))}


@dataclass
class Builder:
    """Writes a graph operator by operator; tensors are their ids."""

    tensors: list[Tensor] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    itemsize: int = 4

    def tensor(self, shape, name="", generated=False) -> int:
        dtype = {2: "bfloat16", 4: "float32", 8: "float64"}[self.itemsize]
        self.tensors.append(
            Tensor(
                shape=tuple(shape),
                dtype=dtype,
                itemsize=self.itemsize,
                name=name,
                generated=generated,
            )
        )
        return len(self.tensors) - 1

    def input(self, *shape, name="") -> int:
        self.inputs.append(self.tensor(shape, name))
        return self.inputs[-1]

    def shape(self, t) -> tuple[int, ...]:
        return self.tensors[t].shape

    def op(
        self, kind, inputs, shapes, rule, flop, heavy=False, bodies=(), structure=None, detail=""
    ):
        generated = all(self.tensors[t].generated for t in inputs)
        outputs = tuple(self.tensor(s, generated=generated) for s in shapes)
        self.operators.append(
            Operator(
                kind=kind,
                inputs=tuple(inputs),
                outputs=outputs,
                rule=rule,
                flop=float(flop),
                heavy=heavy,
                bodies=bodies,
                structure=structure,
                detail=detail,
                where=f"hand.py:{len(self.operators) + 1}",
            )
        )
        return outputs if len(outputs) != 1 else outputs[0]

    def zeros(self, *shape) -> int:
        loops = tuple(Loop(n) for n in shape)
        out: DimMap = tuple((i,) for i in range(len(shape)))
        return self.op("iota", (), [shape], LoopRule(loops, (), (out,)), 0)

    def dot(self, a, b, *, contract=(1, 0), batch=0) -> int:
        """Product over one dim of each; the first `batch` dims of both are batch dims."""
        sa, sb = self.shape(a), self.shape(b)
        ka, kb = contract
        free_a = [d for d in range(batch, len(sa)) if d != ka]
        free_b = [d for d in range(batch, len(sb)) if d != kb]
        loops = [Loop(sa[d]) for d in range(batch)]
        dims_a: list[tuple[int, ...]] = [(d,) for d in range(batch)] + [()] * (len(sa) - batch)
        dims_b: list[tuple[int, ...]] = [(d,) for d in range(batch)] + [()] * (len(sb) - batch)
        out = [(d,) for d in range(batch)]
        for dims, shape, free in ((dims_a, sa, free_a), (dims_b, sb, free_b)):
            for d in free:
                dims[d] = (len(loops),)
                out.append((len(loops),))
                loops.append(Loop(shape[d]))
        dims_a[ka] = dims_b[kb] = (len(loops),)
        loops.append(Loop(sa[ka], SUM))
        assert sa[ka] == sb[kb]
        shape = tuple(loops[x[0]].size for x in out)
        rule = LoopRule(tuple(loops), (tuple(dims_a), tuple(dims_b)), (tuple(out),), ((0,), (1,)))
        flop = 2 * math.prod(x.size for x in loops)
        return self.op("dot_general", (a, b), [shape], rule, flop, True, detail=str(contract))

    def elementwise(self, kind, *operands) -> int:
        shape = max((self.shape(t) for t in operands), key=len)
        loops = tuple(Loop(n) for n in shape)
        full: DimMap = tuple((i,) for i in range(len(shape)))
        rule = LoopRule(
            loops,
            tuple(full if self.shape(t) == shape else () for t in operands),
            (full,),
            LINEAR.get(kind, ()),
        )
        return self.op(kind, operands, [shape], rule, math.prod(shape))

    def reduce(self, a, *dims, kind="reduce_sum") -> int:
        shape = self.shape(a)
        monoid = SUM if kind == "reduce_sum" else "max"
        loops = tuple(Loop(n, monoid if d in dims else "parallel") for d, n in enumerate(shape))
        full: DimMap = tuple((i,) for i in range(len(shape)))
        out: DimMap = tuple((i,) for i in range(len(shape)) if i not in dims)
        rule = LoopRule(loops, (full,), (out,), ((0,),) if monoid == SUM else ())
        kept = tuple(n for d, n in enumerate(shape) if d not in dims)
        return self.op(kind, (a,), [kept], rule, math.prod(shape), detail=str(dims))

    def broadcast(self, a, shape, dims) -> int:
        """Result dim `dims[i]` follows dim i of the operand."""
        loops = tuple(Loop(n) for n in shape)
        full: DimMap = tuple((i,) for i in range(len(shape)))
        rule = LoopRule(loops, (tuple((d,) for d in dims),), (full,), ((0,),))
        return self.op("broadcast_in_dim", (a,), [shape], rule, 0, detail=str(dims))

    def transpose(self, a, *order) -> int:
        shape = self.shape(a)
        order = order or tuple(reversed(range(len(shape))))
        loops = tuple(Loop(n) for n in shape)
        full: DimMap = tuple((i,) for i in range(len(shape)))
        rule = LoopRule(loops, (full,), (tuple((d,) for d in order),), ((0,),))
        return self.op(
            "transpose", (a,), [tuple(shape[d] for d in order)], rule, 0, detail=str(order)
        )

    def scan(self, body: Graph, operands, num_consts, num_carry, length) -> tuple[int, ...]:
        shapes = [
            body.tensors[t].shape if j < num_carry else (length, *body.tensors[t].shape)
            for j, t in enumerate(body.outputs)
        ]
        rule = LoopRule(
            (),
            tuple(((),) * len(self.shape(t)) for t in operands),
            tuple(((),) * len(s) for s in shapes),
        )
        structure = scan_structure(
            num_operands=len(operands),
            num_results=len(shapes),
            num_consts=num_consts,
            num_carry=num_carry,
            length=length,
        )
        flop = length * sum(op.flop for op in body.operators)
        out = self.op("scan", operands, shapes, rule, flop, bodies=(body,), structure=structure)
        return out if isinstance(out, tuple) else (out,)

    def graph(self, outputs, aliases=()) -> Graph:
        return Graph(
            tensors=tuple(self.tensors),
            operators=tuple(self.operators),
            inputs=tuple(self.inputs),
            outputs=tuple(outputs),
            aliases=tuple(aliases),
        )


def perceptron(
    layers: int, batch: int, width: int, *, momentum=False, bias=False, loss=True
) -> Graph:
    """Forward, backward and SGD of dense layers with relu and mean square loss.

    Inputs: weights, biases, momenta, x, y; results: the same state, then the loss
    if wanted.
    """
    g = Builder()
    weights = [g.input(width, width, name=f"w{i}") for i in range(layers)]
    biases = [g.input(width, name=f"b{i}") for i in range(layers)] if bias else []
    state = weights + biases
    momenta = [g.input(*g.shape(w), name=f"m{i}") for i, w in enumerate(state)] if momentum else []
    x, y = g.input(batch, width, name="x"), g.input(batch, width, name="y")
    inputs, before = [x], []
    h = x
    for i, w in enumerate(weights):
        h = g.dot(h, w)
        if bias:
            h = g.elementwise("add", h, g.broadcast(biases[i], (batch, width), (1,)))
        before.append(h)
        if i < layers - 1:
            h = g.elementwise("max", h)
            inputs.append(h)
    error = g.elementwise("sub", h, y)
    tail = [g.reduce(g.elementwise("square", error), 0, 1)] if loss else []
    grad = g.elementwise("mul", error)
    grads: list[int] = [0] * len(state)
    for i in reversed(range(layers)):
        if bias:
            grads[layers + i] = g.reduce(grad, 0)
        grads[i] = g.dot(inputs[i], grad, contract=(0, 0))
        if i:
            grad = g.dot(grad, weights[i], contract=(1, 1))
            grad = g.elementwise("select", grad, before[i - 1])
    new_state, new_momenta = [], []
    for k, (p, d) in enumerate(zip(state, grads, strict=True)):
        step = d
        if momentum:
            step = g.elementwise("add", g.elementwise("scale", momenta[k]), d)
            new_momenta.append(step)
        new_state.append(g.elementwise("sub", p, g.elementwise("scale", step)))
    kept = new_state + new_momenta
    return g.graph([*kept, *tail], [(i, i) for i in range(len(kept))])


DEVICE = DeviceSpec(
    name="test",
    memory_bytes=16 * 2**30,
    memory_bytes_per_s=900e9,
    flop_per_s=(("float32", 10e12), ("bfloat16", 60e12)),
    source="made up for tests",
)


def mesh(*sizes: int, bandwidths=None, latency_s=0.0, device=DEVICE) -> LogicalMesh:
    """A mesh whose axes have the given bandwidths (bytes a second; 1 without)."""
    return LogicalMesh(
        axes=tuple(
            MeshAxis(
                name="xyzuvw"[i],
                size=n,
                latency_s=latency_s,
                link_bytes_per_s=bandwidths[i] if bandwidths else 1.0,
            )
            for i, n in enumerate(sizes)
        ),
        device=device,
    )


def random_graph(seed: int, num_operators: int = 8) -> Graph:
    """Up to `num_operators` operators on small matrices, some state returned."""
    rng = random.Random(seed)
    g = Builder()
    n = rng.choice((4, 8))
    pool = [g.input(n, n) for _ in range(rng.randint(2, 3))]
    inputs = list(pool)
    for _ in range(rng.randint(2, num_operators)):
        kind = rng.choice(("dot", "dot", "add", "relu", "transpose", "mul"))
        a, b = rng.choice(pool), rng.choice(pool)
        if kind == "dot":
            pool.append(g.dot(a, b, contract=rng.choice(((1, 0), (0, 0), (1, 1)))))
        elif kind in ("add", "mul"):
            pool.append(g.elementwise(kind, a, b))
        elif kind == "relu":
            pool.append(g.elementwise("max", a))
        else:
            pool.append(g.transpose(a))
    outputs = [pool[-1]]
    aliases = []
    if rng.random() < 0.5:
        outputs.append(rng.choice(pool[len(inputs) :]))
        aliases.append((0, 1))
    return g.graph(outputs, aliases)
