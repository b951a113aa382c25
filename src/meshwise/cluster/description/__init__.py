"""Descriptions of clusters in files: TOML by hand, JSON by `meshwise calibrate`.

`cluster_file` reads a cluster and documents the keys, `host_table` one kind of host, `profile` what
was measured; `files` and `fields` read text and typed values with errors that name the place.
"""
