"""What a program holds: the peak memory of one device, for the compiler of a target.

`peak.peak` is what others call; `target.Target` is what the model of each target answers, and
`targets` lists these models.  `program` (the program of one device), `live` and `liveness` are
shared by all of them; `treatment`, `fusion`, `order` and `xla_target` are what XLA's compilers
share; `cpu/` and `gpu/` say in what they differ.
"""
