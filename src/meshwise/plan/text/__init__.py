"""Plans as text for people: tables, whether a plan fits, whose the seconds are.

Others use `explain`, `columns` (tables that keep to a width), `device_memory.plan_memory` and
`memory_parts.filled_memory`.
"""
