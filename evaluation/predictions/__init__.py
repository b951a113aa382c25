"""Predictions on a testbed: the network is measured, plans are made with it, and run.

Others use `command.predictions`, a command of `python -m evaluation`.
"""
