"""Attention as one operator: softmax between two products, with keys that may go round a ring.

`scores` is what stands between the first product and the softmax, `blocks` computes with a block of
keys after another, `operators` holds the primitives with their loops.
"""
