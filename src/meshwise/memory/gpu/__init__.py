"""XLA:GPU: its margin, its rules of fusion, its schedulers."""
