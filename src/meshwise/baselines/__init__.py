"""Other deciders over the same costs: what the planner is compared with.

`methods.plan_baseline` plans one mesh by name, `search` is the search over logical meshes;
`layer_costs` plans layers as a method does, and `pipeline.deciders` decides pipelines of them.
"""
