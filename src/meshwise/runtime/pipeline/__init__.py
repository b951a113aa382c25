"""Pipelines in one process: compiled stages, and what runs them."""
