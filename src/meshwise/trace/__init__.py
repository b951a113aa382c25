"""A user's step becomes a flat program and a graph, or layers.

`step` traces, `to_graph` makes the graph, `loss` is `value_and_grad`, `time` the micro-batches,
`padding` longer dims, `layers` a step cut into layers.
"""
