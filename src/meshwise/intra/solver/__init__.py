"""Assignment with pairwise costs and interval memory: reader, reductions, bounds, search, checker.

Nothing here knows of JAX, graphs or meshes; a problem comes in, a solution with a proof goes out.
"""
