"""What layers cost on one mesh: time and memory, given the states of their cuts.

Others use `layer_network` and `state_costs` (one layer), `run_costs` and `run_bounds` (runs of
layers), `footprint` (what a device holds), `passes` (seconds of the passes) and `joint_run` (a run
as one integer program).
"""
