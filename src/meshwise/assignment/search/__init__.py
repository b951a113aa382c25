"""Choices that cost little: found, mended and improved, whatever is proved of them.

`first_solution` needs no kernels; `forward_checking` and `repair` end where no rule is broken;
`neighbourhood` chooses connected parts (`component`) anew within the `room` of the memory rows;
`recombination` puts several choices together; `improvement` takes turns with these.  `descent`,
`mixture` and `within_row` improve choices of a planner's problem.
"""
