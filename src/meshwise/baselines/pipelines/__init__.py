"""Layers that a named method plans, and the pipelines that are made of them.

`layer_costs.MethodCosts` gives costs of runs of layers, `block_layers` finds the layers that people
divide by hand, `even_stages` divides them, and `simulated.simulate` runs a step.  `trainers/` and
`evaluation/baselines` decide about stages with these.
"""
