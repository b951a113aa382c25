"""Eight virtual CPU devices for every test, set before any test can touch a device."""

from __future__ import annotations

import os

import jax

if "JAX_PLATFORMS" not in os.environ:
    jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
