"""Everything that Meshwise takes from JAX beyond its stable public API, in one place.

Each name says which version changed it.  `jax._src` may be imported only here; a test lists the
imports.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any

from jax import core
from jax._src import source_info_util
from jax.extend import core as jex_core
from jax.interpreters import partial_eval

Literal = jex_core.Literal
Jaxpr = jex_core.Jaxpr
ClosedJaxpr = jex_core.ClosedJaxpr
Primitive = jex_core.Primitive
jaxpr_as_fun = jex_core.jaxpr_as_fun

# Primitives whose body is inlined; the parameter that holds it.  `pjit` is the name before 0.7,
# `remat2` of 0.10, `remat3` of 0.11.
CALL_BODIES = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "remat2": "jaxpr",
    "remat3": "jaxpr",
    "checkpoint": "jaxpr",
}
REMAT_NAMES = frozenset({"remat2", "remat3", "checkpoint"})


def dead_code_eliminated(jaxpr: Any) -> Any:
    """The jaxpr without equations that no result needs; inputs are kept."""
    return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)[0]


def source_line(source: Any) -> str:
    """The user's source line of an equation, as `model.py:88:4 (step.loss_fn)`.

    Without the folder: equal steps in other places have equal plans, and a plan tells nothing of
    the machine that made it.
    """
    if source is None:
        return ""
    path, separator, function = source_info_util.summarize(source).partition(" (")
    return f"{PurePath(path).name}{separator}{function.replace('<locals>.', '')}"


@contextmanager
def source_scope(source: Any) -> Iterator[None]:
    """Equations bound inside carry the source line of the equation they stand for."""
    if source is None:
        yield
        return
    with source_info_util.user_context(source.traceback, name_stack=source.name_stack):
        yield


def is_tracer(value: Any) -> bool:
    """Whether a value is being traced."""
    return isinstance(value, core.Tracer)
