"""The planner for one mesh: layouts as choices, rows of memory, prices.

`plan_graph` plans a graph, `options` is what it is asked and what it answers, `price` prices a
finished decision, `network` and `memory_rows` are shared with the planner across meshes.
"""
