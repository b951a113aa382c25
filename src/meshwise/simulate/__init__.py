"""A discrete-event simulator: time, shared network cards, memory; no formula of the planner."""
