"""Attention found in a traced step, and written as one operator.

`labels` follows the dims of scores through a jaxpr, `match` finds softmax between two products,
`replace` writes the step anew. `written_out` says what attention a step writes out.
"""
