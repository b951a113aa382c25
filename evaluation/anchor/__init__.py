"""One published run predicted from another."""
