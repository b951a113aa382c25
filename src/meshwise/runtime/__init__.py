"""Compiled steps on devices, and what their programs really do.

`executable`, `pipeline.executable` and `forward` run steps; `step_executable` is what they share.
`compile` makes executables that do what was written, `hlo` reads compiled programs, `fidelity`
compares them with the plan, and `donation` says what a step takes over.  `job` is what processes
tell each other, and `transports` brings arrays to other meshes and processes.
"""
