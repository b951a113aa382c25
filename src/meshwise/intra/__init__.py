"""The planner for one mesh: layouts as choices, rows of memory, prices.

`plan_graph` plans a graph, `options` is what it is asked and what it answers, `price` prices a
finished decision, `blocks/` cuts a graph into what decides together, `network` is shared with the
planner across meshes, and `limit/` finds plans that fit into memory.
"""
