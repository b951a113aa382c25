"""Experts that a step writes as ragged products, found and put together."""
