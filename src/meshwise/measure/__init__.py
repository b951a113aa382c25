"""Costs of layers by measurement: their programs are compiled and timed on the devices at hand."""
