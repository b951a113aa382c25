"""A plan as text for people."""
