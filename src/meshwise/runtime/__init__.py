"""Compiled steps on devices, and what their optimised HLO really does.

`executable`, `pipeline.executable` and `forward` run steps (`step_executable` is what they share);
`hlo` reads compiled programs; `donation` says what a step takes over.
"""
