"""Pipelines in one process.

`make_pipeline` compiles the layers of a plan (`build`) and writes the instructions, `interpreter`
runs them, `executable` is a step as the user calls it, `tile_copier` moves arrays between meshes,
`measured` times each instruction.  Steps that follow a pipeline run by `runtime/forward`.
"""
