"""The compiled part of the simulator, for `engine` and `measure` alone."""
