"""A frozen graph: operators as loops, tensors, and layouts (split, replicated, partial).

`graph.Graph` and `layout.Layout` are what others use, `loops` states what an operator does,
`structure` how operators with bodies are wired, `minimum_cut` cuts a graph.
"""
