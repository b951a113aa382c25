"""Costs of all runs of layers under every way to plan them, partly by a second process.

Others use `variant` (a way to plan a run) and `variant_costs.VariantCosts`.
"""
