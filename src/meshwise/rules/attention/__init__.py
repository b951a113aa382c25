"""Attention as one operator: softmax between two products, with keys that may go round a ring.

`scores` is what stands between the first product and the softmax, `blocks` computes with one block
of keys after the other, `operators` has the primitives with their loops.
"""
