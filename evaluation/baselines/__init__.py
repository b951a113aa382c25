"""Baselines that decide about the layers of a step: stages, micro-batches, memory options.

Other deciders over the same layers, costs and simulator as the planner's: `deciders.DECIDERS` has
them all by name, `megatron` is also used point by point, `block_layers` finds the layers that
people cut by hand.
"""
