"""The main job: a byte-level GPT on real text, trained through a plan that Meshwise finds."""
