"""Training steps on which predicted and compiled programs are compared (invariant I2).

From parameter-bound (small batch, wide layers) to activation-bound (large batch, long sequences):
multi-layer perceptrons and GPTs, unrolled and as a scan, under every method.  `LISTED` was looked
at while the memory model was made; `drawn(seed)` makes others.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

import meshwise as mw
from meshwise.models.gpt import Gpt, GptConfig
from meshwise.models.losses import masked_mean_cross_entropy, mean_cross_entropy
from meshwise.request.methods import Method

NUM_DEVICES = 8
HELD_OUT_SEEDS = tuple(range(9200, 9210))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mlp:
    """Dense layers with an activation between, mean squared error.

    Attributes:
        widths: Of the input, the hidden layers and the output.
        batch: Rows.
        activation: `tanh`, `relu` or `gelu`.
        residual: Each hidden layer adds to its input (equal widths).
        scan: The hidden layers are one `lax.scan` over stacked weights (equal widths).
    """

    widths: tuple[int, ...]
    batch: int
    activation: str = "tanh"
    residual: bool = False
    scan: bool = False

    def __str__(self) -> str:
        """`mlp 128x3 tanh b256`."""
        form = f"{'scan ' if self.scan else ''}{'res ' if self.residual else ''}"
        return f"mlp {'-'.join(map(str, self.widths))} {form}{self.activation} b{self.batch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GptCase:
    """A GPT on `batch` sequences."""

    config: GptConfig
    batch: int
    masked: bool = False

    def __str__(self) -> str:
        """`gpt h128 l2 s64 v512 b16`, with the form of the layers."""
        c = self.config
        form = "".join(
            word
            for flag, word in (
                (c.scan_layers, " scan"),
                (c.remat, " remat"),
                (c.dropout > 0, " dropout"),
                (self.masked, " masked"),
            )
            if flag
        )
        return f"gpt h{c.hidden} l{c.num_layers} s{c.seq_len} v{c.vocab_size} b{self.batch}{form}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One program: a model, an optimizer, a number of micro-batches, a method."""

    model: Mlp | GptCase
    optimizer: str
    num_microbatches: int
    method: Method

    def __str__(self) -> str:
        """Model, optimizer and micro-batches; the method stands in a column of its own."""
        return f"{self.model} {self.optimizer} B{self.num_microbatches}"


_OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": lambda: optax.sgd(1e-2),
    "momentum": lambda: optax.sgd(1e-2, momentum=0.9),
    "adam": lambda: optax.adam(1e-3, eps=1e-3),
    "adamw-clip": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
}
_ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
}


def _mlp_loss(model: Mlp) -> tuple[Callable[[Any], Any], Callable[[Any, Any], jax.Array], Any]:
    activation = _ACTIVATIONS[model.activation]
    shapes = list(zip(model.widths, model.widths[1:], strict=False))

    def init(key: jax.Array) -> Any:
        del key
        if model.scan:
            width = model.widths[1]
            count = len(shapes) - 2
            return {
                "first": _dense(*shapes[0]),
                "layers": {
                    "w": jnp.zeros((count, width, width)),
                    "b": jnp.zeros((count, width)),
                },
                "last": _dense(*shapes[-1]),
            }
        return [_dense(*shape) for shape in shapes]

    def layer(p: Any, h: jax.Array) -> jax.Array:
        out = activation(h @ p["w"] + p["b"])
        return h + out if model.residual and h.shape == out.shape else out

    def loss(params: Any, batch: Any) -> jax.Array:
        h = batch["x"]
        if model.scan:
            h = layer(params["first"], h)
            h, _ = jax.lax.scan(lambda h, p: (layer(p, h), None), h, params["layers"])
            last = params["last"]
        else:
            for p in params[:-1]:
                h = layer(p, h)
            last = params[-1]
        return jnp.mean((h @ last["w"] + last["b"] - batch["y"]) ** 2)

    batch = {
        "x": jax.ShapeDtypeStruct((model.batch, model.widths[0]), jnp.float32),
        "y": jax.ShapeDtypeStruct((model.batch, model.widths[-1]), jnp.float32),
    }
    return init, loss, batch


def _dense(rows: int, columns: int) -> dict[str, jax.Array]:
    return {"w": jnp.zeros((rows, columns)), "b": jnp.zeros((columns,))}


def _gpt_loss(model: GptCase) -> tuple[Callable[[Any], Any], Callable[[Any, Any], jax.Array], Any]:
    config = model.config
    module = Gpt(config)

    def init(key: jax.Array) -> Any:
        return module.init(key, jnp.zeros((1, config.seq_len), jnp.int32))["params"]

    def loss(params: Any, batch: Any) -> jax.Array:
        rngs = {"dropout": batch["key"]} if config.dropout else {}
        logits: Any = module.apply(
            {"params": params}, batch["x"], deterministic=not config.dropout, rngs=rngs
        )
        if model.masked:
            return masked_mean_cross_entropy(logits, batch["y"], batch["mask"])
        return mean_cross_entropy(logits, batch["y"])

    tokens = jax.ShapeDtypeStruct((model.batch, config.seq_len), jnp.int32)
    batch: dict[str, Any] = {"x": tokens, "y": tokens}
    if model.masked:
        batch["mask"] = tokens
    if config.dropout:
        batch["key"] = jax.eval_shape(lambda: jax.random.key(0))
    return init, loss, batch


def parallel_step(case: Case) -> tuple[mw.api.ParallelStep, Any, Any]:
    """The step of a case with its abstract state and batch."""
    make = _mlp_loss if isinstance(case.model, Mlp) else _gpt_loss
    init, loss, batch = make(case.model)  # pyright: ignore[reportArgumentType]
    tx = _OPTIMIZERS[case.optimizer]()
    batch_dims = {name: None if name == "key" else 0 for name in batch}

    def create(key: jax.Array) -> Any:
        params = init(key)
        return params, tx.init(params)

    @mw.parallelize(
        method=case.method, num_microbatches=case.num_microbatches, batch_dims=[batch_dims]
    )
    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        value, grads = mw.value_and_grad(lambda p: loss(p, batch))(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), value

    return step, jax.eval_shape(create, jax.random.key(0)), batch


def _gpt(hidden: int, layers: int, seq: int, vocab: int, batch: int, **more: Any) -> GptCase:
    masked = more.pop("masked", False)
    config = GptConfig(
        vocab_size=vocab,
        seq_len=seq,
        hidden=hidden,
        num_layers=layers,
        num_heads=8,
        **more,
    )
    return GptCase(config=config, batch=batch, masked=masked)


def _case(model: Mlp | GptCase, optimizer: str, num_microbatches: int, method: Method) -> Case:
    return Case(model=model, optimizer=optimizer, num_microbatches=num_microbatches, method=method)


_WIDE = Mlp(widths=(128, 512, 512, 512, 64), batch=64)
_MIXED = Mlp(widths=(128, 256, 512, 256, 64), batch=512, activation="gelu")
_TALL = Mlp(widths=(64, 128, 128, 128, 128, 64), batch=4096, residual=True)
_STACK = Mlp(widths=(64, 256, 256, 256, 256, 256, 64), batch=1024, scan=True)
_SMALL = _gpt(128, 2, 64, 512, 16)
_LONG = _gpt(64, 3, 128, 256, 32)
_FLAT = _gpt(256, 2, 16, 1024, 8)

LISTED: tuple[Case, ...] = (
    _case(_WIDE, "adam", 1, mw.DataParallel()),
    _case(_WIDE, "adam", 2, mw.Zero3()),
    _case(_WIDE, "sgd", 1, mw.IntraOp((2, 2, 2))),
    _case(_MIXED, "adam", 1, mw.Zero2()),
    _case(_MIXED, "momentum", 4, mw.Megatron(2, 4)),
    _case(_TALL, "adam", 1, mw.Zero3()),
    _case(_TALL, "sgd", 2, mw.IntraOp((2, 4))),
    _case(_STACK, "adam", 1, mw.Heuristic((2, 4))),
    _case(_STACK, "adam", 4, mw.DataParallel()),
    _case(_SMALL, "adam", 1, mw.DataParallel()),
    _case(_SMALL, "adam", 1, mw.Megatron(2, 4)),
    _case(_SMALL, "sgd", 4, mw.Zero2()),
    _case(_LONG, "adam", 1, mw.Zero3()),
    _case(_LONG, "adam", 2, mw.IntraOp((4, 2))),
    _case(_FLAT, "adam", 1, mw.IntraOp((2, 4))),
    _case(_FLAT, "adamw-clip", 1, mw.Heuristic((8,))),
    _case(_gpt(128, 3, 64, 512, 16, scan_layers=True), "adam", 1, mw.DataParallel()),
    _case(_gpt(128, 3, 64, 512, 16, scan_layers=True), "adam", 2, mw.Zero3()),
    _case(_gpt(64, 4, 64, 256, 32, scan_layers=True), "sgd", 1, mw.Megatron(4, 2)),
    _case(_gpt(64, 2, 32, 256, 32, masked=True), "adam", 4, mw.IntraOp((2, 4))),
)


def drawn(seed: int) -> Case:
    """A case drawn by a seed."""
    rng = random.Random(seed)
    model: Mlp | GptCase
    if rng.random() < 0.4:
        width = rng.choice((64, 128, 256, 512))
        depth = rng.randint(3, 6)
        same = rng.random() < 0.5
        hidden = tuple(width if same else rng.choice((64, 128, 256, 512)) for _ in range(depth))
        model = Mlp(
            widths=(rng.choice((64, 128)), *hidden, rng.choice((64, 128))),
            batch=rng.choice((64, 256, 1024, 4096)),
            activation=rng.choice(("tanh", "relu", "gelu")),
            residual=same and rng.random() < 0.5,
            scan=same and rng.random() < 0.4,
        )
    else:
        model = _gpt(
            rng.choice((64, 128, 192)),
            rng.randint(2, 3),
            rng.choice((16, 32, 64, 128)),
            rng.choice((256, 512, 1024)),
            rng.choice((8, 16, 32)),
            masked=rng.random() < 0.3,
            scan_layers=rng.random() < 0.4,
        )
    method = rng.choice(
        (
            mw.DataParallel(),
            mw.Zero2(),
            mw.Zero3(),
            mw.Megatron(2, 4),
            mw.Megatron(4, 2),
            mw.IntraOp((8,)),
            mw.IntraOp((2, 4)),
            mw.IntraOp((2, 2, 2)),
            mw.Heuristic((2, 4)),
        )
    )
    # A micro-batch has a row for every device.
    most = model.batch // NUM_DEVICES
    counts = [count for count in (1, 2, 4) if count <= most]
    return _case(model, rng.choice(tuple(_OPTIMIZERS)), rng.choice(counts), method)


def held_out() -> tuple[Case, ...]:
    """Ten cases whose seeds were not used while the memory model was made."""
    return tuple(drawn(seed) for seed in HELD_OUT_SEEDS)
