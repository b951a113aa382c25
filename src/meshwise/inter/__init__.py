"""The planner between operators: layers, stages, submeshes, and what the pipeline costs."""
