"""Ways on which arrays get from process to process.

Others use `transport.Transport`, and `sockets.SocketTransport`, which makes one for a job.
"""
