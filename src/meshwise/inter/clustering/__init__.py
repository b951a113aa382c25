"""The operators of a step become layers.

Others use `operator_chain` (a step as plain numbers), `operator_clustering` (L layers, eq. 6 of the
paper) and `layer_count` (how many layers).
"""
