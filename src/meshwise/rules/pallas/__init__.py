"""Pallas kernels: their loops are read from the grid, the block maps and the body.

`scalars` knows what follows from block numbers, `carried` what one block leaves to the next,
`grid` which loops of the grid may be split, and `operators` has the primitive.
"""
