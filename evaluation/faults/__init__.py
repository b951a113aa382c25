"""Processes that are killed, stopped and slowed down while they train, and what becomes of it."""
