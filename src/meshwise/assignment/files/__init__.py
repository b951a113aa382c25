"""Problems as files: the JSON form of the ASPLOS 2025 contest, plain or compressed.

`reader` reads a file of any size a piece at a time (`json_stream`), `writer` writes an instance,
and `dump` keeps the problems of a planner as files that `meshwise solve` reads.
"""
