"""Exact reductions: a smaller problem with the same optimum, and the way back.

`reduction` is the way in.  Its kernels work on `arrays`: `choices` drops impossible and dominated
choices, `folding` takes out followers and nodes of low degree, `rows` those rows that cannot bind.
"""
