"""A step on simulated meshes and links: discrete events, and plans on them.

Others use `plan.simulate_plan` (a plan, as it is or with `Changes`), `stage_run.simulate_stages`
and `chunks.simulate_chunks` (stages that are no plan yet), `timeline.Timeline` (what they return)
and `trace.chrome_trace`. It shares no formula with the planner.
"""
