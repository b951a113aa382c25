"""The joint search: stages, submeshes, micro-batches, schedule and rematerialisation together.

Others use `search`, `search_space.SearchOptions`, `replanning`, `interleaving`, `finishing` (a plan
of what was found), `memory_guard` (its memory counted anew), `least_memory` and `least_work`.
"""
