"""For each primitive its loops, its local form and its FLOP: one file a family.

`table` holds them, and `primitive` says what a rule is. `products`, `windows` and `indexed` are
rooms of families; `kernel.sharded_kernel` gives an opaque kernel a rule.
"""
