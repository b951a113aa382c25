"""Static programs of a pipeline: one list of instructions for each mesh, made before it runs."""
