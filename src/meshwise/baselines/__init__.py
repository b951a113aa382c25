"""Other deciders over the same costs: what the planner of one mesh is compared with.

`methods.plan_baseline` plans one mesh by name, `search` is the search over logical meshes, and
`restrictions` says what each method takes away from the planner's space. `pipelines/` has layers
and stages that methods plan; baselines that decide pipelines stand in `trainers/`, and in
`evaluation/baselines`, outside the package. `rival_method` has what a page shows of another method.
"""
