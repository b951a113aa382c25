"""A tensor from one mesh to another: who sends which box when, by four strategies.

Others use `cross_mesh_plan.cross_mesh_plan` (senders, order, seconds and their bound),
`strategies.STRATEGIES`, `host_tasks.host_tasks` (what is to be sent, for layouts on hosts), and
`planned_route.planned_route` with a `sending.Sending` (the route of tiles that does it).
"""
