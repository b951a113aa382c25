"""Measures the devices at hand: products, memory, collectives."""
