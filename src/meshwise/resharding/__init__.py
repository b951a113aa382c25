"""Change of layout: within a mesh as paths of collectives, between meshes as tiles that are sent.

Others use `within.path` and `within.cost_matrix` (a cheapest path, and the seconds of all),
`between.gather_s` (seconds to gather what another mesh sent), `tiles.boxes` (what each device
holds) and `once.homed_tiles` (who sends what, each tile once).
"""
