"""Pipelines on the devices of one process, or of all processes of a job.

`make_pipeline` compiles the layers of a plan (`build`) and writes the instructions, `interpreter`
runs them, `executable` is a step as the user calls it, `measured` times each instruction, and
`seen` puts together what processes saw of it.  Steps that follow a pipeline run by
`runtime/forward`.
"""
