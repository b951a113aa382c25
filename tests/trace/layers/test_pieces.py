"""A step run piece by piece is the step: the oracle is JAX on one device."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwise as mw
from doubles.layered_steps import (
    CLIPPED,
    SIGNATURE,
    Step,
    assert_equal,
    gpt_step,
    layering,
    model,
    norms_step,
    unet_step,
)
from meshwise.errors import TraceError
from meshwise.jax_compat.jaxprs import jaxpr_as_fun
from meshwise.trace.evaluate import run_program
from meshwise.trace.layers.chain import chain_of
from meshwise.trace.layers.equations import needed
from meshwise.trace.layers.in_time import in_microbatches
from meshwise.trace.layers.joint import Joint
from meshwise.trace.layers.layering import Layering
from meshwise.trace.layers.split import split_step
from meshwise.trace.layers.update import Share, Update
from meshwise.trace.step import open_step
from meshwise.trace.time.emit import (
    accumulated,
    after_loop,
    before_loop,
    empty_sums,
    inside_loop,
    made_inside,
)
from meshwise.trace.time.rows import join_rows, take_rows
from meshwise.trace.time.state import SPLIT, Batch, split
from oracle.one_device import run_traced, traced
from oracle.problem import quick_jit

pytestmark = pytest.mark.usefixtures("quick_compile", "x64")


def run_joint(layers: Layering, joint: Joint, inputs: list[Any], b: int) -> list[Any]:
    """A differentiated piece in `b` micro-batches.

    Rows are joined again; a statistic of each micro-batch alone, which crosses cuts as such, is
    stacked.
    """
    program = joint.program
    if b == 1:
        return run_program(program, inputs)
    batch = Batch(layers.batch_size, b, 1)
    block = in_microbatches(layers.cutter, joint, batch, local_statistics=layers.local_statistics)
    whole = before_loop(program, block, inputs)
    sums, stacked, equal = made_inside(program, block)
    stacked += [program.outputs[n] for n in joint.crossed.local_results]
    total = empty_sums(program, block, sums)
    parts: list[list[Any]] = []
    for t in range(b):
        rows = {
            program.inputs[n]: take_rows(inputs[n], split(dim), batch, t)
            for n, dim in joint.batch_dims.items()
        }
        rows |= {program.inputs[n]: inputs[n][t] for n in joint.crossed.local}
        value = inside_loop(program, block, batch, jnp.int32(t), whole, rows)
        terms = [value(i, block.states[i]) for i in sums]
        total = accumulated(program, block, batch, sums, total, terms)
        parts.append([value(i, block.states[i]) for i in (*equal, *stacked)])
    whole.update(zip(sums, total, strict=True))
    for i, values in zip([*equal, *stacked], zip(*parts, strict=True), strict=True):
        is_rows = block.states[i].kind == SPLIT
        whole[i] = jnp.stack(values) if i in stacked else values[0]
        whole[i] = join_rows(whole[i], block.states[i], batch) if is_rows else whole[i]
    return after_loop(program, block, whole)


def run_in_pieces(
    layers: Layering, flat: list[Any], runs: list[tuple[int, int]], b: int = 1
) -> list[Any]:
    """One step on one device, stage by stage, as a pipeline runs it."""
    split, update = layers.split, layers.update
    known: dict[Any, Any] = {}
    loss = split.forward.jaxpr.outvars
    joints = {run: layers.joint(*run) for run in runs}
    weights = {run: layers.cutter.prepare(joints[run].piece, flat) for run in runs}
    for run in runs:
        piece = joints[run].piece
        # What leaves does not depend on the cotangents.
        inputs = [flat[i] for i in piece.arguments] + weights[run]
        inputs += [known[v] for v in piece.entering]
        inputs += [no_cotangent(layers, joints[run], v, b) for v in joints[run].outward]
        outs = run_joint(layers, joints[run], inputs, b)[: len(piece.leaving)]
        known.update(zip(piece.leaving, outs, strict=True))
    cotangents: dict[Any, Any] = {}
    gradients: dict[int, Any] = {}
    for run in reversed(runs):
        joint = joints[run]
        piece = joint.piece
        inputs = [flat[i] for i in piece.arguments] + weights[run]
        inputs += [known[v] for v in piece.entering] + [cotangents[v] for v in joint.outward]
        outs = run_joint(layers, joint, inputs, b)
        back = outs[len(piece.leaving) :]
        for v, ct in zip(joint.inward, back, strict=False):
            cotangents[v] = cotangents[v] + ct if v in cotangents else ct
        for r, g in zip(piece.roots, back[len(joint.inward) :], strict=True):
            gradients[r] = gradients[r] + g if r in gradients else g
    for r, root in enumerate(split.roots):
        gradients.setdefault(r, jnp.zeros(root.aval.shape, root.aval.dtype))
    forward = run_flat(split.forward, flat)
    count = 1 + split.num_aux
    if layers.local_statistics:  # what later pieces read is stacked
        joined = {v for joint in joints.values() for v in joint.joined}
        known.update((v, jnp.mean(known[v], 0)) for v in joined)
    values = [known.get(v, x) for v, x in zip(loss[:count], forward[:count], strict=True)]
    shares = [update.share(*run) for run in runs]
    mine = [{r: gradients[r] for r in share.owned} for share in shares]
    sent: dict[Any, Any] = {}
    shared: dict[Any, Any] = {}
    for phase in range(update.num_phases):
        for share, owned in zip(shares, mine, strict=True):
            sent |= sent_in(update, share, phase, (flat, owned, values), shared)
        shared |= update.join(phase, flat, values, sent)
    results = update.common(flat, values, shared)
    for share, owned in zip(shares, mine, strict=True):
        made, _ = update.run(share, flat, owned, values, [shared[v] for v in share.shared])
        results.update(zip(share.results, made, strict=True))
    return [results[j] for j in range(len(results))]


def sent_in(
    update: Update, share: Share, phase: int, given: tuple[Any, ...], shared: dict[Any, Any]
) -> dict[Any, Any]:
    """What a share sends in one phase, by variable; `shared` is what earlier phases joined."""
    wanted = share.sends[phase]
    part = replace(
        share,
        results=(),
        sends=(wanted,),
        shared=tuple(v for v in share.shared if v in shared),
        equations=tuple(needed(share.equations, wanted)),
    )
    _, made = update.run(part, *given, [shared[v] for v in part.shared])
    return dict(zip(wanted, made, strict=True))


def no_cotangent(layers: Layering, joint: Joint, variable: Any, b: int) -> jax.Array:
    zeros = jnp.zeros(variable.aval.shape, variable.aval.dtype)
    is_stacked = layers.local_statistics and b > 1 and variable in joint.joined
    return jnp.broadcast_to(zeros, (b, *zeros.shape)) if is_stacked else zeros


def run_flat(closed: Any, flat: list[Any]) -> list[Any]:
    return list(jaxpr_as_fun(closed)(*flat))


STEPS: dict[str, Callable[[], tuple[Step, tuple[Any, ...]]]] = {
    "tied embedding, clipping": lambda: gpt_step(CLIPPED, num_layers=1),
    "dropout, momentum": lambda: gpt_step(optax.sgd(0.1, momentum=0.9), dropout=0.2, num_layers=1),
    "remat": lambda: gpt_step(optax.sgd(0.1), remat=True, num_layers=1),
    "skips": unet_step,
}
EACH_OF_FIVE = [(k, k) for k in range(5)]


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(
    "runs", [EACH_OF_FIVE, pytest.param([(0, 1), (2, 4)], marks=pytest.mark.slow)]
)
def test_a_step_in_pieces_is_the_step(name: str, runs: list[tuple[int, int]]) -> None:
    step, args = STEPS[name]()
    layers = layering(step, args, 5)
    flat, _ = jax.tree.flatten((args, {}))
    found = quick_jit(lambda *leaves: run_in_pieces(layers, list(leaves), runs))(*flat)
    assert_equal(found, jax.tree.leaves(quick_jit(step)(*args)))


def test_a_term_of_the_loss_crosses_cuts() -> None:
    """Experts: the balancing terms of all layers meet at the end; groups of tokens in each row."""
    step, args = model("moe-tiny", optax.sgd(0.1), 4, num_layers=3, seq_len=8, group_size=8)
    layers = layering(step, args, 3)
    flat, _ = jax.tree.flatten((args, {}))
    found = quick_jit(lambda *leaves: run_in_pieces(layers, list(leaves), EACH_OF_FIVE[:3], 2))(
        *flat
    )
    assert_equal(found, jax.tree.leaves(quick_jit(step)(*args)))
    # A term enters the last layer, and is no activation of its micro-batches.
    last = layers.joint(2, 2)
    assert len(last.joined & set(last.piece.entering)) == 1
    crossing = layers.graph(2, 2, 2).entering
    assert len(crossing) == len(last.piece.entering) - 1
    assert all(c.num_bytes > 8 for c in crossing)


def bent_term_step() -> tuple[Step, tuple[Any, ...]]:
    """A loss that is not linear in a mean that an early layer makes."""

    def loss(params: Any, x: Any) -> Any:
        first = jnp.tanh(x @ params[0])
        term = jnp.mean(first**2)
        last = jnp.tanh(jnp.tanh(first @ params[1]) @ params[2])
        return jnp.mean(last**2) + term**2

    def step(state: Any, x: Any) -> Any:
        value, grads = mw.value_and_grad(loss)(state, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), value

    rng = np.random.default_rng(2)
    weights = [jnp.asarray(rng.normal(size=(4, 4))) for _ in range(3)]
    return step, (weights, jnp.asarray(rng.normal(size=(8, 4))))


def test_a_term_that_the_loss_bends_does_not_cross_cuts() -> None:
    step, args = bent_term_step()
    layers = layering(step, args, 2)
    with pytest.raises(TraceError, match="no cut is possible after .* the loss bends it"):
        layers.graph(1, 1, 4)


def test_batch_norms_are_cut_with_statistics_of_each_micro_batch() -> None:
    """Running means included; some of the cuts stand in the middle of a norm."""
    step, args = norms_step()
    layers = layering(step, args, 5, local_statistics=True)
    flat, _ = jax.tree.flatten((args, {}))
    found = quick_jit(lambda *leaves: run_in_pieces(layers, list(leaves), EACH_OF_FIVE, 4))(*flat)
    cut = traced(step, *args, b=4, num_devices=1, statistics="local")
    assert_equal(found, jax.tree.leaves(run_traced(cut, *args)))
    assert any(layers.joint(k, k).crossed.local for k in range(5))


def test_batch_norms_ask_for_statistics_of_each_micro_batch() -> None:
    step, args = norms_step()
    layers = layering(step, args, 2)
    with pytest.raises(TraceError, match='microbatch_statistics="local"'):
        layers.graph(0, 0, 4)


def test_a_forward_pass_ends_before_what_it_sums_is_added_up() -> None:
    """In the last layer too, where nothing but sums leaves."""
    step, args = norms_step()
    layers = layering(step, args, 3, local_statistics=True)
    for k in range(3):
        piece = layers.graph(k, k, 4)
        operators = piece.graph.operators[piece.loop].bodies[0].operators
        kinds = [op.kind for op in operators]
        ahead = [operators[i].kind for i in piece.forward]
        products = sum(
            e.primitive.name == "dot_general" for e in layers.joint(k, k).piece.equations
        )
        assert ahead.count("dot_general") == products
        assert kinds.count("dot_general") > products > 0


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_equal_layers_are_one_class(dropout: float) -> None:
    step, args = gpt_step(optax.adam(1e-3), num_layers=3, dropout=dropout)
    opened = open_step(step, args, {}, SIGNATURE)
    split = split_step(opened.closed, opened.batch_dims, opened.aliases, opened.names)
    chain = chain_of(split)
    adds = [
        k
        for k, e in enumerate(chain.links)
        if e.primitive.name == "add" and e.outvars[0].aval.shape == (4, 8, 32)
    ]
    # Each block ends with its second addition to the stream.
    ends = [k for k in adds if sum(1 for m, _ in chain.reads[k]) == 2]
    assert len(ends) >= 6
    bounds = [0, *(k + 1 for k in ends[1::2][:3]), len(chain.links)]
    ranges = [(low, high - 1) for low, high in itertools.pairwise(bounds)]
    layers = Layering(split, chain, ranges, 4)
    assert layers.classes[1] == layers.classes[2]
    assert layers.classes[0] != layers.classes[1]


def test_a_step_without_a_loss_is_refused() -> None:
    def step(state: Any, batch: Any) -> Any:
        return jax.tree.map(lambda p: p - jnp.mean(batch), state), jnp.mean(batch)

    opened = open_step(step, (jnp.ones(3), jnp.ones((4, 3))), {}, SIGNATURE)
    with pytest.raises(TraceError, match="has no gradient that could be cut"):
        split_step(opened.closed, opened.batch_dims, opened.aliases, opened.names)


def test_an_optimizer_that_flattens_all_parameters_is_refused() -> None:
    step, args = unet_step()

    def flattening(state: Any, batch: Any) -> Any:
        params, opt = state
        loss, grads = mw.value_and_grad(lambda p: sum(jnp.mean((batch["x"] @ w) ** 2) for w in p))(
            params
        )
        joined = jnp.concatenate([g.ravel() for g in grads]) * 0.1
        parts = jnp.split(joined, len(params))
        return (
            [w - g.reshape(w.shape) for w, g in zip(params, parts, strict=True)],
            opt,
        ), loss

    del step
    weights = [jnp.ones((6, 4096)) * k for k in (1.0, 2.0)]
    with pytest.raises(TraceError, match="leaf by leaf"):
        layering(flattening, ((weights, ()), args[1]), 2)


def test_a_layer_holds_its_parameters_and_moments_and_nothing_like_them() -> None:
    """The decay of an old moment needs no gradient; it is no value that a layer is given."""
    step, args = gpt_step(optax.adam(1e-3), num_layers=2)
    layers = layering(step, args, 3)
    for k in range(3):
        piece = layers.graph(k, k, 2)
        graph = piece.graph
        crossing = {c.value for c in piece.entering} | {c.cotangent for c in piece.leaving}
        others = [
            t
            for i, t in enumerate(graph.inputs)
            if i not in crossing and i not in piece.state and graph.tensors[t].name == ""
        ]
        # Gradients of tied parameters come from other layers.
        foreign = layers.update.share(k, k).tied
        assert sum(math.prod(graph.tensors[t].shape) > 1 for t in others) == len(foreign)
