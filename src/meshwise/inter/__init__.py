"""The planner across meshes, in five rooms: clustering, layer_cost, cost_table, stages, search.

`kernel_set` compiles the kernels ahead of time.
"""
