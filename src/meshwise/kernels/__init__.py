"""Numeric kernels: functions that Numba compiles, and the folder in which machine code stays.

`compiler.kernel` and `compiler.part` mark functions; nothing is compiled, hashed, made or deleted
before a kernel is called.  A package that has kernels names the functions that need all of them as
a `background.KernelSet`, which compiles them ahead of time, in this process or beside it.
`folder` says where machine code is kept; it is never that of other sources than those imported.
"""
