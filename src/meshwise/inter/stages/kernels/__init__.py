"""The compiled part of stage construction, for `least_fill` and `stage_options` alone."""
