"""A layer as parts that run: before the micro-batches, forward, backward, weights, after.

Others use `piece` (a run of layers as a graph to plan), `programs.piece_programs` and
`split_backward` (its programs once it is decided), `roles` (who is who among its values) and
`residuals` (what a later part has of an earlier one).
"""
