"""Plans as text for people: tables, whether a plan fits, whose the seconds are.

Others use `explain`, `columns` (tables that keep to a width) and `device_memory.plan_memory`.
"""
