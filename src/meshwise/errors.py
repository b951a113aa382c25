"""Every error that a user can meet, one family."""

from __future__ import annotations


class MeshwiseError(Exception):
    """Root of the family.  A message says what is wrong, where, the values, and what to do."""


class TraceError(MeshwiseError):
    """The step cannot be traced or does not separate into micro-batches."""


class LossError(TraceError, TypeError):
    """What is differentiated is no real scalar; a `TypeError` too, which JAX raises."""


class CallError(TraceError, TypeError):
    """The step does not take such arguments; a `TypeError` too, which Python raises."""


class PinError(MeshwiseError):
    """A pin names nothing, or contradicts another pin or the mesh."""


class InfeasibleError(MeshwiseError):
    """No plan was found that fits into memory and satisfies the pins."""


class ClusterError(MeshwiseError):
    """A cluster description is wrong, or the devices are not there."""


class PlanError(MeshwiseError):
    """A plan cannot be read, or is not a plan for this step and mesh."""


class ProgramError(MeshwiseError):
    """A program breaks its own rules, or XLA does not compile it; no device was touched."""


class DataError(MeshwiseError):
    """Batch data is not what the step needs: rows are absent, wrong, or differ in processes."""


class LaunchError(MeshwiseError):
    """The processes of a job cannot be started."""


class TransportError(MeshwiseError):
    """A transfer between meshes failed."""


class CheckpointError(MeshwiseError):
    """A checkpoint is damaged, of another run, or cannot be written."""


class SolverError(MeshwiseError):
    """A solver failed, or its answer did not pass the independent check."""


class StateLostError(MeshwiseError):
    """A failure while donated state was being updated: the state is gone."""


class NotFiniteError(MeshwiseError, FloatingPointError):
    """A result is NaN or infinite, and `jax_debug_nans` or `jax_debug_infs` is set.

    It is a `FloatingPointError` too, which JAX raises.
    """


class PlanWarning(UserWarning):
    """A plan that a user may not want; the same text stands in `Plan.warnings`."""
