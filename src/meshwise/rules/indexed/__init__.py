"""Operators that read or write where indices say: gather, scatter, slices."""
