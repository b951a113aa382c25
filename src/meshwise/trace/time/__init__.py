"""The micro-batch axis in time: which equations run before, inside and after the loop.

Source: DESIGN decision 2; the rule numbers in the comments are those of research/prototype.
"""
