"""XLA:TPU: the rules of XLA:GPU."""
