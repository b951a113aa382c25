"""The main job: a model on text, or a step of the user's own, trained through a plan."""
