"""Operators that look at windows of their operand: convolutions and reductions of windows."""
