"""Baselines that decide about the layers of a step: stages, micro-batches, memory options.

`deciders.DECIDERS` has them all by name; `megatron` is also used point by point.
"""
