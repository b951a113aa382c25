"""XLA:TPU: the rules of XLA:GPU, with a margin of its own."""
