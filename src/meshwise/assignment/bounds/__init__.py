"""Lower bounds: messages along the network, and prices of the memory rows.

`messages` passes cost between nodes and edges, `ascent` moves prices of memory along the gradient
of the bound, and `exact_bound` computes a bound in whole numbers, with the choices that it rules
out.
"""
