"""Steps whose layers are stacked arrays under `scan`, taken apart into single layers.

Others use `unstack.unstacked` and the places of leaves that it returns (`Leaf`, `Unstacked`).
"""
