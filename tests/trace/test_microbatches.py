"""Micro-batches in time: exact for what separates, a typed error that names the rest."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from doubles.foreign import scale
from meshwise.errors import TraceError
from meshwise.trace.step import StepSignature
from meshwise.trace.time.rows import join_rows, take_rows
from meshwise.trace.time.state import Batch, split
from oracle.one_device import descent, heavy_outside_the_loop, run_traced, traced
from oracle.problem import run_once
from oracle.tolerances import X64

pytestmark = pytest.mark.usefixtures("x64", "quick_compile")

# The batch has the size of every other dim too: nothing may go by sizes.
N = WIDTH = 16
RNG = np.random.default_rng(0)
PARAMS = {
    "w": RNG.normal(size=(WIDTH, WIDTH)) / 4,
    "v": RNG.normal(size=(WIDTH, WIDTH)) / 4,
    "b": RNG.normal(size=WIDTH),
}
BATCH = {
    "x": RNG.normal(size=(N, WIDTH)),
    "y": RNG.integers(0, WIDTH, N, dtype=np.int32),
    "mask": RNG.random(N) < 0.6,
    "weight": RNG.random(N),
}


def hidden(p: Any, batch: Any) -> Any:
    return jnp.tanh(batch["x"] @ p["w"] + p["b"])


def losses(p: Any, batch: Any) -> Any:
    log_probs = jax.nn.log_softmax(hidden(p, batch) @ p["v"])
    return -log_probs[jnp.arange(N), batch["y"]]


def mean(p, batch):
    return losses(p, batch).mean()


def total(p, batch):
    return losses(p, batch).sum()


def masked_mean(p, batch):
    return jnp.sum(losses(p, batch) * batch["mask"]) / batch["mask"].sum()


def mask_as_where(p, batch):
    return losses(p, batch).mean(where=batch["mask"])


def mask_out_of_a_key(p, batch):
    mask = jax.random.bernoulli(jax.random.key(5), 0.5, (N,))
    return jnp.sum(losses(p, batch) * mask) / mask.sum()


def weights_of_the_batch(p, batch):
    share = jax.nn.softmax(batch["weight"])
    return jnp.sum(losses(p, batch) * share)


def statistics_of_the_input(p, batch):
    """Batch statistics of what is no dense product of it: cheap to know beforehand."""
    x = batch["x"]
    normal = (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5)
    return losses(p, {**batch, "x": normal}).mean()


def with_l2(p, batch):
    decay = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p))
    return losses(p, batch).mean() + 0.01 * decay


def with_l1_and_a_spectral_term(p, batch):
    return losses(p, batch).mean() + 0.01 * jnp.abs(p["b"]).sum() + jnp.sum((p["w"] @ p["v"]) ** 2)


def with_metrics(p, batch):
    h = hidden(p, batch)
    logits = h @ p["v"]
    each = losses(p, batch)
    right = logits.argmax(-1) == batch["y"]
    return each.mean(), {
        "accuracy": right.mean(),
        "count": right.sum(),
        "count8": right.astype(jnp.uint8).sum(dtype=jnp.uint8),
        "largest": each.max(),
        "smallest": h.min(),
        "any": jnp.any(each > 3.0),
        "all": jnp.all(h < 0.99),
        "rows": logits,
        "columns": logits.T,
        "columns in one": logits.T.reshape(-1),
        "root": jnp.sqrt(jnp.mean(each**2)),
        "gram": h.T @ h,
        "sorted": jnp.sort(each),
        "running": jnp.cumsum(each),
        "first": each[:3],
        "worst": jnp.argmax(each),
        "scaled": each / each.max(),
        "product": jnp.prod(jnp.abs(each)),
        "nan": jnp.isnan(each).any(),
        "constant": jnp.arange(N),
    }


def dropout(p, batch):
    keep = jax.random.bernoulli(jax.random.key(1), 0.5, (N, WIDTH))
    h = jnp.where(keep, hidden(p, batch) / 0.5, 0.0)
    noise = jax.random.normal(jax.random.key(2), (WIDTH, N)).T
    return jnp.mean(jax.nn.logsumexp((h + noise) @ p["v"], axis=-1))


def a_key_for_each_row(p, batch):
    keys = jax.random.split(jax.random.key(1), N)
    noise = jax.vmap(lambda key: jax.random.normal(key, (WIDTH,)))(keys)
    return jnp.mean((hidden(p, batch) * noise) ** 2)


def lookup_and_update(p, batch):
    """An embedding read and, in the auxiliary results, an update that adds to a whole table."""
    rows = p["w"][batch["y"]]
    table = p["v"].at[batch["y"]].add(jax.lax.stop_gradient(rows @ p["v"]))
    return jnp.mean((rows @ p["v"]) ** 2), table


def attention_over_features(p, batch):
    scores = jnp.einsum("ni,nj->nij", hidden(p, batch), batch["x"] @ p["v"])
    return jnp.mean(jax.nn.softmax(scores, axis=-1)[:, 0] ** 2)


def vmapped(p, batch):
    one = lambda x, y: -jax.nn.log_softmax(jnp.tanh(x @ p["w"]) @ p["v"])[y]  # noqa: E731
    return jax.vmap(one)(batch["x"], batch["y"]).mean()


def a_kernel_for_each_row(p, batch):
    """`vmap` puts the rows between the groups and the channels of the kernel."""

    def one(x):
        kernel = (x @ p["w"]).reshape(4, 2, 2)
        image = p["v"].reshape(2, 4, 32)
        return jax.lax.conv_general_dilated(image, kernel, (1,), "SAME", feature_group_count=2)

    return jnp.mean(jnp.tanh(jax.vmap(one)(batch["x"])) ** 2)


def transposed(p, batch):
    return jnp.mean(jnp.tanh(p["w"] @ batch["x"].T) ** 2)


def per_row_sort(p, batch):
    return jnp.mean(jnp.sort(hidden(p, batch), axis=-1)[:, :4] @ p["v"][:4])


def scan_over_layers(p, batch):
    stack = jnp.stack([p["w"], p["v"]])
    h, sums = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), jnp.sum(h**2)), batch["x"], stack)
    return jnp.mean(h**2) + jnp.mean(sums) / N


def scan_with_dropout(p, batch):
    def layer(carry, w):
        h, key = carry
        key, now = jax.random.split(key)
        return (jnp.tanh(h @ w) * jax.random.bernoulli(now, 0.8, h.shape), key), None

    stack = jnp.stack([p["w"], p["v"]])
    (h, _), _ = jax.lax.scan(layer, (batch["x"], jax.random.key(4)), stack)
    return jnp.mean(h**2)


def remat(p, batch):
    return jnp.mean(jax.checkpoint(lambda q: losses(q, batch))(p))


def doubled_rows(p, batch):
    return jnp.mean(jnp.concatenate([batch["x"], 2 * batch["x"]]) @ p["w"])


def chosen_and_rejected(p, batch):
    """DPO: two blocks of rows go through the model together, and apart into the loss."""
    rejected = {"x": batch["x"][:, ::-1], "y": batch["y"][::1]}
    both = {k: jnp.concatenate([batch[k], rejected[k]]) for k in ("x", "y")}
    log_probs = jax.nn.log_softmax(hidden(p, both) @ p["v"])
    gain = jnp.take_along_axis(log_probs, both["y"][:, None], -1)[:, 0]
    chosen, worse = jnp.split(gain, 2)
    return -jnp.mean(jax.nn.log_sigmoid(chosen - worse)), gain


def three_blocks(p, batch):
    """Cut unevenly, along the last dim, by slices whose gradients are padded."""
    x = batch["x"].T
    h = jnp.tanh(p["w"] @ jnp.concatenate([x, jnp.sin(x), p["v"]], axis=1))
    first, rest = h[:, :N], h[:, N:]
    again = jnp.concatenate([rest, first], axis=1)
    return jnp.mean((p["v"] @ again) ** 2) + jnp.mean(rest[:, N:] * first), again


def blocks_with_draws(p, batch):
    """Numbers of rows and random bits of rows in all blocks."""
    both = jnp.concatenate([batch["x"], batch["x"] ** 2])
    keep = jax.random.bernoulli(jax.random.key(1), 0.5, both.shape)
    h = jnp.where(keep, hidden(p, {"x": both}), 0.0) + jnp.arange(2 * N)[:, None]
    picked = h[jnp.arange(2 * N), jnp.concatenate([batch["y"], batch["y"]])]
    return jnp.mean(picked**2) + jnp.mean((h.reshape(2, N, WIDTH)[0] @ p["v"]) ** 2)


def blocks_in_a_loop(p, batch):
    def layer(h, w):
        both = jnp.tanh(jnp.concatenate([h, -h]) @ w)
        return sum(jnp.split(both**2, 2)), jnp.mean(both)

    h, means = jax.lax.scan(layer, batch["x"], jnp.stack([p["w"], p["v"]]))
    return jnp.mean(h**2) + jnp.mean(means)


def blocks_that_a_loop_stacks(p, batch):
    """A loop over the rows of all blocks is no loop over those of micro-batches."""
    both = hidden(p, {"x": jnp.concatenate([batch["x"], -batch["x"]])})
    shifted = jax.lax.map(lambda row: row - row.max(), both)
    return jnp.mean(both**2), shifted


def until_each_row_is_done(p, batch):
    """`vmap` of a `while_loop`: rows that are done wait for the others, which changes nothing."""

    def one(x):
        def goes_on(carry):
            return jnp.any(jnp.abs(carry[0]) > 0.3) & (carry[1] < 20)

        return jax.lax.while_loop(goes_on, lambda c: (0.8 * c[0], c[1] + 1), (x, 0))

    start = jax.lax.stop_gradient(hidden(p, batch))
    _, trips = jax.vmap(one)(start)
    # Also with a predicate for each row and column, along the last dim, and with its tangent.
    each = jax.vmap(jax.vmap(lambda x: jax.lax.while_loop(lambda x: x > 0.2, jnp.sin, x)))
    _, slope = jax.jvp(each, (start.T,), (jnp.ones_like(start.T),))
    return jnp.mean((hidden(p, batch) / trips[:, None]) ** 2) + jnp.mean(p["v"] @ slope), trips


SEPARABLE = (
    until_each_row_is_done,
    doubled_rows,
    chosen_and_rejected,
    three_blocks,
    blocks_with_draws,
    blocks_in_a_loop,
    blocks_that_a_loop_stacks,
    mean,
    total,
    masked_mean,
    mask_as_where,
    mask_out_of_a_key,
    weights_of_the_batch,
    statistics_of_the_input,
    with_l2,
    with_l1_and_a_spectral_term,
    with_metrics,
    dropout,
    a_key_for_each_row,
    lookup_and_update,
    attention_over_features,
    vmapped,
    a_kernel_for_each_row,
    transposed,
    per_row_sort,
    scan_over_layers,
    scan_with_dropout,
    remat,
)
# Products of parameters alone run once, before the loop.
HEAVY_BEFORE = (with_l1_and_a_spectral_term,)


def assert_close(got: Any, want: Any) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for (path, a), b in zip(
        jax.tree_util.tree_flatten_with_path(want)[0], jax.tree.leaves(got), strict=True
    ):
        name = jax.tree_util.keystr(path)
        assert a.dtype == b.dtype, name
        if jnp.issubdtype(a.dtype, jnp.floating):
            scale = max(1.0, float(jnp.abs(a).max()))
            np.testing.assert_allclose(b, a, rtol=0, atol=X64 * scale, err_msg=name)
        else:
            np.testing.assert_array_equal(b, a, name)


@pytest.mark.parametrize("loss", SEPARABLE, ids=lambda f: f.__name__)
def test_a_separable_step_is_exact_and_stays_in_the_loop(loss):
    step = descent(loss)
    want = run_once(step, PARAMS, BATCH)
    for b in (2, 8):
        cut = traced(step, PARAMS, BATCH, b=b)
        assert_close(run_traced(cut, PARAMS, BATCH), want)
        if loss not in HEAVY_BEFORE:
            assert heavy_outside_the_loop(cut.program, b) == []


@pytest.mark.parametrize("num_devices", [1, 2, 8, 3])
@pytest.mark.parametrize("loss", [with_metrics, blocks_with_draws, three_blocks])
def test_rows_may_be_interleaved_for_any_number_of_devices(num_devices, loss):
    step = descent(loss)
    cut = traced(step, PARAMS, BATCH, b=2, num_devices=num_devices)
    assert_close(run_traced(cut, PARAMS, BATCH), run_once(step, PARAMS, BATCH))


@pytest.mark.parametrize(("num_blocks", "b"), [(2, 2), (4, 2), (2, 4)])
def test_rows_in_blocks_of_an_inner_shard_map(num_blocks, b):
    """A block has rows of every micro-batch, since every device has."""
    mesh = jax.make_mesh((num_blocks,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = {"mesh": mesh, "in_specs": (P(), P("data")), "out_specs": P("data")}

    def loss(p, batch):
        h = jax.shard_map(lambda p, x: jnp.tanh(x @ p["w"]), **specs)(p, batch["x"])
        block = lambda p, h: jax.lax.pmean(jnp.mean((h @ p["v"]) ** 2), "data")  # noqa: E731
        return jax.shard_map(block, **specs | {"out_specs": P()})(p, h), h

    step = descent(loss)
    cut = traced(step, PARAMS, BATCH, b=b, num_devices=4)
    assert_close(run_traced(cut, PARAMS, BATCH), run_once(step, PARAMS, BATCH))
    assert heavy_outside_the_loop(cut.program, b) == []


def test_state_that_follows_the_batch():
    """An average of rows, a table of the last rows, a counter: no loss at all."""

    def step(state, batch):
        new = {
            "average": 0.9 * state["average"] + 0.1 * batch["x"].mean(0),
            "last": batch["x"] @ state["w"],
            "count": state["count"] + batch["mask"].sum(),
            "w": state["w"],
        }
        return new, None

    state = {
        "average": np.zeros(WIDTH),
        "last": np.zeros((N, WIDTH)),
        "count": np.int64(0),
        "w": PARAMS["w"],
    }
    cut = traced(step, state, BATCH, b=4)
    assert_close(run_traced(cut, state, BATCH), run_once(step, state, BATCH))


@pytest.mark.parametrize("sections", [1, 3])
def test_rows_taken_in_every_section_of_a_dim_are_joined_again(sections):
    value = np.arange(2 * sections * 8).reshape(2, -1)
    state, batch = split(1, 2 * sections), Batch(8, 2, 2)
    taken = jnp.stack([take_rows(jnp.asarray(value), state, batch, t) for t in range(2)])
    rows = value.reshape(2, sections, 8)[:, :, [0, 1, 4, 5]]
    np.testing.assert_array_equal(taken[0], rows.reshape(2, -1))
    np.testing.assert_array_equal(join_rows(taken, state, batch), value)


# -- what does not separate -----------------------------------------------------------------------


def contrastive(p, batch):
    z = hidden(p, batch)
    return jnp.mean(jax.nn.logsumexp(z @ z.T, axis=-1))


def root_of_a_mean(p, batch):
    return jnp.sqrt(jnp.mean(losses(p, batch) ** 2))


def log_of_a_mean(p, batch):
    return jnp.log(jnp.mean(jnp.exp(losses(p, batch))))


def batch_norm(p, batch):
    h = batch["x"] @ p["w"]
    return jnp.mean(((h - h.mean(0)) * jax.lax.rsqrt(h.var(0) + 1e-5)) @ p["v"])


def cumsum_over_the_batch(p, batch):
    return jnp.mean(jnp.tanh(jnp.cumsum(batch["x"], axis=0) @ p["w"]) @ p["v"])


def cumsum_of_the_hidden(p, batch):
    return jnp.mean(jnp.cumsum(hidden(p, batch), axis=0) @ p["v"])


def sort_over_the_batch(p, batch):
    return jnp.mean(jnp.sort(hidden(p, batch), axis=0)[:3] @ p["v"])


def first_rows(p, batch):
    return jnp.mean((batch["x"][:8] @ p["w"]) ** 2)


def permuted_rows(p, batch):
    order = np.random.default_rng(1).permutation(N)
    return jnp.mean((batch["x"][order] @ p["w"]) * hidden(p, batch))


def reversed_rows(p, batch):
    return jnp.mean((batch["x"][::-1] @ p["w"]) * hidden(p, batch))


def rows_before_others(p, batch):
    """One block is no whole number of the other."""
    return jnp.mean(jnp.concatenate([batch["x"][:4], batch["x"]]) @ p["w"])


def half_of_the_blocks(p, batch):
    both = hidden(p, {"x": jnp.concatenate([batch["x"], 2 * batch["x"]])})
    return jnp.mean(both[N // 2 : 3 * N // 2] @ p["v"])


def blocks_beside_pairs(p, batch):
    """Each row twice, one behind the other, beside all rows twice."""
    both = jnp.concatenate([batch["x"], 2 * batch["x"]])
    pairs = jnp.repeat(hidden(p, batch), 2, axis=0)
    return jnp.mean((hidden(p, {"x": both}) * pairs) ** 2)


def batch_minor_in_a_reshape(p, batch):
    return jnp.mean(batch["x"].T.reshape(-1, 4) @ p["w"][:4])


def neighbours(p, batch):
    return jnp.mean(jnp.roll(hidden(p, batch), 1, axis=0) @ p["v"])


def largest_loss(p, batch):
    return losses(p, batch).max()


def load_balance(p, batch):
    gate = jax.nn.softmax(batch["x"] @ p["w"])
    top = jax.nn.one_hot(gate.argmax(-1), WIDTH)
    return jnp.mean(gate @ p["v"]) + jnp.sum(gate.mean(0) * top.mean(0))


def until_all_rows_are_done(p, batch):
    """Rows that are done go on with the others."""
    start = jax.lax.stop_gradient(hidden(p, batch))
    found = jax.lax.while_loop(lambda h: jnp.any(jnp.abs(h) > 0.3), lambda h: 0.8 * h, start)
    return jnp.mean(found @ p["v"])


def until_the_mean_row_is_done(p, batch):
    def one(x, mean):
        return jax.lax.while_loop(lambda c: c > mean, jnp.sin, x)

    start = jax.lax.stop_gradient(hidden(p, batch))
    return jnp.mean(jax.vmap(jax.vmap(one), (0, None))(start, start.mean(0)) @ p["v"])


def decided_by_all_rows(p, batch):
    """As `equinox.error_if` on activations."""
    h = hidden(p, batch)
    return jnp.mean(jax.lax.cond(jnp.any(h > 0.99), jnp.sin, lambda h: h, h) @ p["v"])


INSEPARABLE = {
    decided_by_all_rows: "cond",
    until_all_rows_are_done: "while",
    until_the_mean_row_is_done: "while|div|gt",
    contrastive: "dot_general",
    root_of_a_mean: "sqrt",
    log_of_a_mean: "log|div",
    batch_norm: "square|mul|rsqrt|sub|div|integer_pow|add",
    cumsum_over_the_batch: "cumsum",
    cumsum_of_the_hidden: "cumsum",
    sort_over_the_batch: "sort",
    first_rows: "slice|dynamic_slice",
    permuted_rows: "gather",
    reversed_rows: "rev",
    rows_before_others: "slice|concatenate",
    half_of_the_blocks: "slice",
    blocks_beside_pairs: "mul|div|integer_pow|square",
    neighbours: "slice|concatenate",
    largest_loss: "eq|reduce_max|div",
    load_balance: "mul|div",
}


@pytest.mark.parametrize(
    "loss", [first_rows, rows_before_others, half_of_the_blocks, batch_minor_in_a_reshape]
)
def test_parts_of_the_batch_separate_where_they_have_rows_of_every_micro_batch(loss):
    """That depends on how many devices rows are interleaved for."""
    step = descent(loss)
    cut = traced(step, PARAMS, BATCH, b=2, num_devices=4)
    assert_close(run_traced(cut, PARAMS, BATCH), run_once(step, PARAMS, BATCH))


@pytest.mark.parametrize("loss", INSEPARABLE, ids=lambda f: f.__name__)
def test_what_does_not_separate_is_refused_by_name(loss):
    step = descent(loss)
    with pytest.raises(TraceError) as caught:
        traced(step, PARAMS, BATCH, b=2, num_devices=1)
    text = str(caught.value)
    assert re.search(rf"micro-batches: ({INSEPARABLE[loss]}) at", text), text
    assert re.search(rf"test_microbatches\.py:\d+.*{loss.__name__}", text), text
    assert "num_microbatches=1" in text
    # Statistics of each micro-batch are named where they help, and only there.
    local: dict[str, Any] = {"b": 2, "statistics": "local", "num_devices": 1}
    if "microbatch_statistics" in text:
        traced(step, PARAMS, BATCH, **local)
    else:
        with pytest.raises(TraceError) as caught:
            traced(step, PARAMS, BATCH, **local)
        assert "microbatch_statistics" not in str(caught.value)
    traced(step, PARAMS, BATCH, b=1)


def test_a_contrastive_loss_is_told_why():
    with pytest.raises(TraceError, match="pairs each row with each other one, and needs the whole"):
        traced(descent(contrastive), PARAMS, BATCH, b=2)


def test_an_operator_without_a_rule_is_named_as_such():
    def loss(p, batch):
        return jnp.mean(scale(batch["x"]) @ p["w"])

    with pytest.raises(TraceError, match=r"no rule for someone_elses_scale at foreign\.py"):
        traced(descent(loss), PARAMS, BATCH, b=2)


# -- the arguments --------------------------------------------------------------------------------


def test_a_batch_that_does_not_divide_names_its_divisors():
    with pytest.raises(TraceError, match=r"batch of 16 .* num_microbatches=3.*\[1, 2, 4, 8, 16\]"):
        traced(descent(mean), PARAMS, BATCH, b=3)


def test_micro_batches_need_a_batch():
    signature = StepSignature(batch_argnums=(), batch_dims=0, donate_argnums="auto")
    with pytest.raises(TraceError, match="no argument is batch data"):
        traced(descent(mean), PARAMS, BATCH, b=2, signature=signature)


def test_batch_arguments_of_different_sizes_are_refused():
    with pytest.raises(TraceError, match=r"different numbers of rows: .*'z'\] has 8 .* has 16;"):
        traced(descent(mean), PARAMS, {**BATCH, "z": np.zeros(8)}, b=2)
