"""Trainers that are not ours: the best that they can be told, and the options that say so.

`best_point.best_point` searches the points of a `trainer.Trainer`, `registry.TRAINERS` has these by
name, and `answer` writes what was found as text and as JSON.  The costs are those of the planner;
a trainer is a smaller space of plans.
"""
