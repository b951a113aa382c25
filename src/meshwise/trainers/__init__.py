"""Trainers that are not ours: the fastest that each can do, and the options for it.

`best_point.best_point` searches the points of a `trainer.PointSpace`: those of a `trainer.Trainer`
(`registry.TRAINERS` has these by name), or of a method of one mesh (`one_mesh.ONE_MESH`).  `answer`
writes what was found of a trainer as text and as JSON.  The costs are those of the planner; a
trainer or a method is a smaller space of plans.
"""
