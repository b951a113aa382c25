"""Change of layout: within a mesh as paths of collectives, between meshes as tiles that are sent.

Others use `within.path` and `within.cost_matrix` (a cheapest path, and the seconds of all),
`between.gather_s` (seconds to gather what another mesh sent), `tiles.boxes` (what each device
holds), `route.route_once` (how tiles get there, each crossing once), `cross_mesh/` (the same by a
strategy between hosts, and its seconds) and `verify_route.verify_route`.
"""
