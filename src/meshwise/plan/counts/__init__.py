"""What a decision does in a step, counted: collectives, FLOP, seconds, replicated work.

Others use `work.work_of` (all of it), `walk` (the one order in which changes of layout come) and
the records `collectives.Collective` and `contents.Argument`.
"""
