"""Stage construction: which layers form a stage, on which submesh, in which variant.

Others use `stage_problem` (the problem as plain numbers), `stage_construction` (its solution),
`placed_construction` and `directions` (the same with places), `objective` and `submeshes`.
"""
