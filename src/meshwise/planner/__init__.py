"""A step, a request and a cluster become a plan; only `Auto(measure=True)` touches devices.

Others use `step.plan_call`, which plans a call whatever its method; `one_mesh` and `pipeline`, the
two ways below it; and `prices`, which plans again with one choice forced.
"""
