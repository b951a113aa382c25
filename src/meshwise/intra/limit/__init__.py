"""Plans within a limit of memory.

`fit` finds a cheap plan that fits, `least_peak` the plan that holds least; `judged` knows what a
choice really holds, `memory_rows` writes what is live at a peak as a row of the problem, `refusal`
has the errors.
"""
