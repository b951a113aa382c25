"""XLA:GPU: its margin, what it fuses, folds and keeps."""
