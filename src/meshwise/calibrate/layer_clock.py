"""Programs that came from another process, compiled and timed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from meshwise.calibrate.clock import Repetition, seconds_a_turn
from meshwise.calibrate.timed_program import Exported
from meshwise.runtime.compile import checked
from meshwise.spmd.program import compile_options

EFFORT = Repetition(repeats=3, run_s=0.02, max_turns=64)


class _Prepared(NamedTuple):
    """A compiled program.

    Attributes:
        compiled: The program.
        specs: Shapes and dtypes of its operands.
        shardings: Shardings of its operands.
    """

    compiled: jax.stages.Compiled
    specs: Sequence[jax.ShapeDtypeStruct]
    shardings: Sequence[jax.sharding.Sharding | None]


class ProgramClock:
    """Holds compiled programs, and times one at a time."""

    def __init__(self) -> None:
        """Begin without a program."""
        self._runs: dict[str, _Prepared] = {}

    def prepare(self, key: str, exported: Exported) -> None:
        """Compile a program.

        Args:
            key: The name of the program from now on.
            exported: The program, as `timed_program.Measurable.export` makes it.

        Raises:
            ProgramError: on XLA:CPU collectives would race.
        """
        program = exported.program
        devices = jax.devices()[: program.nr_devices]
        mesh = Mesh(np.array(devices).reshape(exported.sizes), exported.names)
        shardings = program.in_shardings_jax(mesh)
        specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in program.in_avals]
        options = compile_options(devices[0].platform, len(devices))
        # Those of the results tell a program without operands on which devices it runs.
        lowered = jax.jit(
            program.call,
            in_shardings=shardings,
            out_shardings=jax.tree.unflatten(program.out_tree, program.out_shardings_jax(mesh)),
            compiler_options=options,
        ).lower(*specs)
        compiled = checked(lowered, np.array(devices), key)
        self._runs[key] = _Prepared(compiled, specs, shardings)

    def seconds(self, key: str) -> float:
        """Return the seconds that a prepared program takes; it is forgotten then."""
        compiled, specs, shardings = self._runs.pop(key)
        operands = [
            jax.jit(partial(_filled, spec), out_shardings=sharding)()
            for spec, sharding in zip(specs, shardings, strict=True)
        ]

        def run(turns: int) -> None:
            for _ in range(turns):
                # One by one: collectives of runs that are under way at once wait for each other on
                # XLA:CPU, where devices share a pool of threads (seen with JAX 0.10.2).
                jax.block_until_ready(compiled(*operands))

        return seconds_a_turn(run, EFFORT)


def _filled(spec: jax.ShapeDtypeStruct) -> jax.Array:
    """Return something to compute with: numbers in a normal range, indices that exist."""
    if jnp.issubdtype(spec.dtype, jax.dtypes.prng_key):
        return jnp.broadcast_to(jax.random.key(0), spec.shape)
    is_float = jnp.issubdtype(spec.dtype, jnp.inexact)
    return jnp.full(spec.shape, 0.5 if is_float else 0, spec.dtype)
