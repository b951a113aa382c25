"""Exact engines for what is small.

`integer_program` writes a network as an integer program for HiGHS, which runs here (`highs`) or in
a process that can be ended (`highs_process`); `small_problem` gives a whole problem to it without
kernels; `enumeration` is depth-first and exact to the byte; `best_first` lists choices by cost.
"""
