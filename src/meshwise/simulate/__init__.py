"""A step on simulated meshes and links: discrete events, and plans on them.

Others use `plan.simulate_plan` (a plan, as it is or with `Changes`), `stage_pipeline` and
`chunks.chunk_pipeline` (stages that are no plan yet, as a `PricedPipeline`), `timeline.Timeline`
(what a simulated step is) and `trace.chrome_trace`. It shares no formula with the planner.
"""
