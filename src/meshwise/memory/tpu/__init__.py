"""XLA:TPU: what differs from XLA:GPU."""
