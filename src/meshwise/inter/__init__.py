"""Planning across meshes: layers, stages, micro-batches, schedule."""
