"""The solver: nodes take one choice each, edges price pairs of choices, rows limit memory.

A planner builds a `problem.Problem` and calls `solve.solve`; a file of the contest is an
`instance.Instance` for `instance_solver.solve_instance`.  Both answer with a choice, a lower bound
and what is proved, which `validity` and `instance.evaluate` compute again in whole numbers.
The rooms: `reductions`, `bounds`, `search`, `exact`, `proof` and `files`.  Nothing here knows of
JAX, graphs or meshes.
"""
