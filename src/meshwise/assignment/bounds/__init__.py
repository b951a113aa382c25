"""Lower bounds: messages along the network, and prices of the memory rows.

`messages` passes cost between nodes and edges.  `relaxation` settles them where there are no rows;
`conditional` does so for all choices of two nodes at once.  `ascent` moves prices of memory along
the gradient of the bound, `row_prices` brackets that of a planner's row, and `exact_bound`
computes a bound in whole numbers, with the choices that it rules out.
"""
