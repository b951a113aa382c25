"""A decision becomes an explicit program: local shapes, collectives, `shard_map`.

`program` lowers a step on one mesh, `layer` one layer of a pipeline, `specs.partition_specs` gives
layouts to users.
"""
