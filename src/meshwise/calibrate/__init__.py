"""Measurements: of the devices of this process, and of planned layers in processes side by side.

Others use `measure.calibrate` (a profile that the cost model reads), `hosts.calibrate_hosts` (the
hosts of a job and the network between them), `target.calibrate_target` (a profile from the compiler
of a device that is not here), `layer_times.MeasuredTimes` and `measured_layers.measuring` (seconds
of planned layers, kept for the next time).
"""
