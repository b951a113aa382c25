"""Steps without gradients, cut along the stages on which their arguments live.

Others use `stages.forward_stages` and `followed` (what is planned and compiled of such a step).
"""
