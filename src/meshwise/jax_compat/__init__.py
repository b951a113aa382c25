"""Everything that Meshwise takes from JAX beyond its stable public API, in one place.

Each name says which version changed it.  `jax._src` may be imported only here; a test lists the
imports.
"""
