"""Blocks of a graph: operators that decide alone, and clusters of operators that decide together.

Others use `partition` (the blocks of a graph); `linear` finds who carries partial sums.
"""
