"""Ways on which arrays get from process to process.

Others use `transport.Transport`, and `choice.transport_of`, which makes one for a job.
"""
