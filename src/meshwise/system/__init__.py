"""The operating system as Meshwise uses it; nothing here knows of plans, graphs or JAX.

`atomic_file.write_atomically` writes a file whole or not at all, `child_process.ChildProcess` is a
Python process that answers requests and ends with the one that asks, and
`bounded_folder.trim` keeps a folder below so many bytes,
`collector.collection_paused` holds Python's cyclic garbage collector back while much is made,
`cores.usable_cores` is how many cores there are,
`identity.Same` is an object as a key that is equal to itself only; `text_file` reads text that
others may have written; `user_cache.user_cache` is the folder of what can be made again,
`own_folder` one there that nobody else can write, `result_files.ResultFiles` keeps results of pure
functions in it, which depend on `sources.sources_digest`.
"""
