"""A step cut into layers: each one's forward and backward pass and its share of the update."""
