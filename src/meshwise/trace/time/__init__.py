"""The micro-batch axis in time: which equations run before, inside and after the loop.

Source: docs/decisions/0002; the comments cite its rules by number.
"""
