"""The clock of programs that came from another process."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwise.calibrate.layer_clock import ProgramClock
from meshwise.calibrate.timed_program import Exported
from meshwise.jax_compat.compilers import exported_program


def test_a_program_without_operands_on_several_devices() -> None:
    """As what a layer computes once, of constants only."""
    mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
    jitted = jax.jit(lambda: jnp.arange(8.0), out_shardings=NamedSharding(mesh, PartitionSpec("x")))
    clock = ProgramClock()
    clock.prepare("key", Exported(exported_program(jitted, []), (4,), ("x",)))
    assert clock.seconds("key") > 0
