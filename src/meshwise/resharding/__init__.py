"""Change of layout: within a mesh as paths of collectives, between meshes as what hosts send."""
