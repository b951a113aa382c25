"""Compilers of devices that are not here: what a plan's programs need according to them.

A `catalog.CompileTarget` is a kind of device with its compiler.  `lowered` turns a plan into
programs, `compiler.compile_programs` compiles them in child processes, and `verification` says what
the compiler reports beside what was planned.  Others use `verification.verify_step`,
`verification.verify_pipeline` and `catalog`.
"""
