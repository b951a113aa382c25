"""The solver: nodes take one choice each, edges price pairs of choices, rows limit memory.

A planner builds a `problem.Problem` and calls `solve.solve`.  A file of the contest is an
`instance.Instance` for `instance_solver.solve_instance`.  Both answer with a choice, a lower bound
and what is proved, which `validity` and `instance.evaluate` compute again in exact sums.  Both
kinds become one `network.Network`, on which all bounds and searches work; `encoding` writes a
problem as an instance where it has to be proved.  The two kinds stay apart, for a problem has
fractions of seconds, and rows that weigh pairs, and an instance has gigabytes of whole numbers.

`solve` counts its work, so that equal problems get equal answers; a limit of time is one more
reason to stop.  The rooms: `reductions`, `bounds`, `search`, `exact`, `proof` and `files`.
Nothing here knows of JAX, graphs or meshes.
"""
