"""Dims that the mesh does not divide, padded to a size that it does divide.

`classes` finds the dims that stand and fall together, `region` which equations run padded,
`emit` makes the program, `choose` says which classes are worth a try.  Source: docs/decisions/0007.
"""
