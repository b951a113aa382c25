"""Compilers of devices that are not here: what a plan's programs need according to them.

A `catalog.CompileTarget` is a kind of device with its compiler.  `compiler.Compiler` compiles
programs for one in a child process, `lowered` turns a plan into programs, and `verification` says
what the compiler reports beside what was planned.  Others use `verification.verify` and `catalog`.
"""
