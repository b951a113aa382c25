"""The evaluations of papers in simulation: `python -m evaluation paper`, `alpacomm`, `anchor`.

Nothing of a paper is measured, and nothing here is installed: it is run from a checkout, beside the
benchmarks. `paper/` compares methods on the settings of Alpa's figures, `alpacomm/` ways to move
tensors between meshes, `anchor/` predicts one published run from another. Only `hosts/` is no
evaluation: it makes hosts with slow links on one machine, for tests and measurements of several.
"""
