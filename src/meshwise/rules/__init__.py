"""For each primitive its loops, its local form and its FLOP: one file a family.

`table` holds them; `kernel.sharded_kernel` gives an opaque kernel a rule.
"""
