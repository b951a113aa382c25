"""Trainers that are not ours: the fastest that each can do, and the options for it.

`best_point.best_point` searches the points of a `trainer.Trainer`, `registry.TRAINERS` has these by
name, and `answer` writes what was found as text and as JSON.  The costs are those of the planner;
a trainer is a smaller space of plans.
"""
