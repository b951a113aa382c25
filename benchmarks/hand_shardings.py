"""Shardings as an engineer writes them by hand for `jax.jit`, by paths of parameters and modules.

A table names the dims of each parameter and of the activations at which trainers constrain them; a
recipe says which mesh axis splits the dims of a name.  No plan of ours is read here.

Sources of the recipes: fully sharded data parallel as Rajbhandari et al. 2020 (ZeRO, stage 3);
Megatron as Shoeybi et al. 2019, with sequence parallelism as Korthikanti et al. 2022; the two
together with the axes of MaxText's `logical_axis_rules` (AI-Hypercomputer/maxtext, base.yml:
`embed` on fsdp; `heads`, `mlp`, `vocab` and `activation_embed` on tensor; a batch on fsdp).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

import flax.linen as nn
import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from meshwise.models.gpt import GptConfig
from meshwise.models.llama import LlamaConfig
from meshwise.models.moe import MoeConfig
from meshwise.models.steps import Config, ModelStep

Dims = tuple[str | None, ...]

# Small vectors (norms, biases of the stream) stay whole in every recipe: splitting them saves no
# memory and costs a collective each.
_WHOLE: Dims = (None,)
_ATTENTION: Mapping[str, Dims] = MappingProxyType(
    {
        "*/attention/query/kernel": ("embed", "heads", None),
        "*/attention/key/kernel": ("embed", "heads", None),
        "*/attention/value/kernel": ("embed", "heads", None),
        "*/attention/query/bias": ("heads", None),
        "*/attention/key/bias": ("heads", None),
        "*/attention/value/bias": ("heads", None),
        "*/attention/out/kernel": ("heads", None, "embed"),
        "*/attention/out/bias": _WHOLE,
        "*/mlp/up/kernel": ("embed", "mlp"),
        "*/mlp/up/bias": ("mlp",),
        "*/mlp/down/kernel": ("mlp", "embed"),
        "*/mlp/down/bias": _WHOLE,
        "*norm*/scale": _WHOLE,
        "*norm*/bias": _WHOLE,
        "token_embedding/embedding": ("vocab", "embed"),
        "position_embedding": (None, "embed"),
    }
)
PARAMETERS: Mapping[type[Config], Mapping[str, Dims]] = MappingProxyType(
    {
        GptConfig: _ATTENTION,
        MoeConfig: {
            **_ATTENTION,
            "*/experts/gate": ("embed", None),
            "*/experts/up": (None, "embed", "mlp"),
            "*/experts/down": (None, "mlp", "embed"),
        },
        LlamaConfig: {
            "*/attention/query/kernel": ("embed", "heads", None, None),
            "*/attention/key/kernel": ("embed", "heads", None),
            "*/attention/value/kernel": ("embed", "heads", None),
            "*/attention/out/kernel": ("heads", None, None, "embed"),
            "*/mlp/gate/kernel": ("embed", "mlp"),
            "*/mlp/up/kernel": ("embed", "mlp"),
            "*/mlp/down/kernel": ("mlp", "embed"),
            "*norm*/scale": _WHOLE,
            "token_embedding/embedding": ("vocab", "embed"),
            "output/kernel": ("embed", "vocab"),
        },
    }
)
# Results of modules, by path and method.
_STREAM: Dims = ("batch", "length", "stream")
ACTIVATIONS: Mapping[str, Dims] = MappingProxyType(
    {
        "token_embedding.attend": ("batch", None, "vocab"),
        "output.__call__": ("batch", None, "vocab"),
        "token_embedding.__call__": _STREAM,
        "final_norm.__call__": _STREAM,
        "block_?.__call__": _STREAM,
        "block_?/norm_?.__call__": _STREAM,
        "block_?/attention.__call__": _STREAM,
        "block_?/mlp.__call__": _STREAM,
        "block_?/experts.__call__": _STREAM,
        "*/attention/query.__call__": ("batch", None, "heads"),
        "*/attention/key.__call__": ("batch", None, "heads"),
        "*/attention/value.__call__": ("batch", None, "heads"),
        "*/mlp/gate.__call__": ("batch", None, "mlp"),
        "*/mlp/up.__call__": ("batch", None, "mlp"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A way to shard a step by hand.

    Attributes:
        axes: Names and sizes of the mesh axes, major to minor.
        parameters: The axis that splits the dims of a name; names left out are whole.
        activations: The same for activations and the batch.
    """

    axes: tuple[tuple[str, int], ...]
    parameters: Mapping[str, str]
    activations: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the mesh axes."""
        return tuple(name for name, _ in self.axes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the mesh axes."""
        return tuple(size for _, size in self.axes)

    @property
    def num_devices(self) -> int:
        """Devices of the mesh."""
        return math.prod(self.sizes)


_TENSOR = {"heads": "tensor", "mlp": "tensor", "vocab": "tensor"}


def fsdp(devices: int) -> Recipe:
    """Return fully sharded data parallel: all state split, each weight gathered for its use.

    Args:
        devices: Devices of the mesh.
    """
    return Recipe(
        axes=(("fsdp", devices),), parameters={"embed": "fsdp"}, activations={"batch": "fsdp"}
    )


def megatron(data: int, tensor: int, *, by_sequence: bool = False) -> Recipe:
    """Return Megatron: weights split by column, then by row; state whole over the data axis.

    Args:
        data: Replicas.
        tensor: Devices over which weights are split.
        by_sequence: Whether the stream between blocks is split along the sequence.
    """
    between = {"length": "tensor"} if by_sequence else {}
    return Recipe(
        axes=(("data", data), ("tensor", tensor)),
        parameters=_TENSOR,
        activations={"batch": "data", **_TENSOR, **between},
    )


def fsdp_tensor(rows: int, tensor: int) -> Recipe:
    """Return the two together, with activations as MaxText constrains them.

    Args:
        rows: Devices over which state and batch are split.
        tensor: Devices over which weights are split besides.
    """
    return Recipe(
        axes=(("fsdp", rows), ("tensor", tensor)),
        parameters={"embed": "fsdp", **_TENSOR},
        activations={"batch": "fsdp", "stream": "tensor", **_TENSOR},
    )


def parameter_dims(config: Config, path: str) -> Dims:
    """Return the names of the dims of a parameter.

    Args:
        config: The configuration of its model.
        path: Its path, as "block_0/mlp/up/kernel".

    Raises:
        KeyError: the table of the model does not have it.
    """
    for pattern, dims in PARAMETERS[type(config)].items():
        if fnmatchcase(path, pattern):
            return dims
    raise KeyError(f"no row of PARAMETERS[{type(config).__name__}] is for {path}; add one")


def spec(dims: Dims, axis_of: Mapping[str, str]) -> PartitionSpec:
    """Return the spec of named dims; an axis splits the first dim that wants it.

    Args:
        dims: Names of the dims.
        axis_of: The axis that splits the dims of a name.
    """
    entries: list[str | None] = []
    for dim in dims:
        axis = axis_of.get(dim) if dim is not None else None
        entries.append(None if axis in entries else axis)
    return PartitionSpec(*entries)


def state_specs(config: Config, state: Any, recipe: Recipe) -> Any:
    """Return the specs of a state: optimizer state as its parameter, counters whole.

    Args:
        config: The configuration of the model.
        state: Shapes of the state, as `models.steps` makes it.
        recipe: The way to shard it.
    """

    def found(path: Any, leaf: Any) -> PartitionSpec:
        name = "/".join(key.key for key in path if isinstance(key, jax.tree_util.DictKey))
        if not name and leaf.ndim == 0:
            return PartitionSpec()
        return spec(parameter_dims(config, name), recipe.parameters)

    return jax.tree.map_with_path(found, state)


def hand_jit(
    config: Config, parts: ModelStep, recipe: Recipe, mesh: Mesh | AbstractMesh | None = None
) -> Any:
    """Return the step under `jax.jit` with shardings by hand.

    Args:
        config: The configuration of the model.
        parts: The step of `models.steps.model_step`.
        recipe: The way to shard it.
        mesh: A mesh with the axes of the recipe, all Auto; by default one without devices.
    """
    place = mesh or AbstractMesh(
        recipe.sizes, recipe.names, axis_types=(AxisType.Auto,) * len(recipe.axes)
    )

    def placed(tree: Any) -> Any:
        return jax.tree.map(lambda entry: NamedSharding(place, entry), tree)

    state = placed(state_specs(config, parts.state, recipe))
    batch = placed(jax.tree.map(lambda _: spec(("batch",), recipe.activations), parts.batch))

    def step(state: Any, batch: Any) -> Any:
        with nn.intercept_methods(_constrained(recipe, place)):
            return parts.step(state, batch)

    return jax.jit(step, in_shardings=(state, batch), out_shardings=(state, None), donate_argnums=0)


def _constrained(recipe: Recipe, mesh: Mesh | AbstractMesh) -> Callable[..., Any]:
    """Return what constrains the results of the modules of `ACTIVATIONS` while they are traced."""

    def intercept(call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        result = call(*args, **kwargs)
        name = f"{'/'.join(context.module.path)}.{context.method_name}"
        dims = next((dims for row, dims in ACTIVATIONS.items() if fnmatchcase(name, row)), None)
        if dims is None:
            return result
        there = NamedSharding(mesh, spec(dims, recipe.activations))
        return jax.tree.map(
            # What is smaller, as the balancing loss of experts, is left to XLA.
            lambda x: jax.lax.with_sharding_constraint(x, there) if x.ndim >= len(dims) else x,
            result,
        )

    return intercept
