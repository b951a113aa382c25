"""Change of layout: within a mesh as paths of collectives."""
