"""Products of matrices, and what linear algebra makes of matrices."""
