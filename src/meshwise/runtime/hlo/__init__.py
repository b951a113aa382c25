"""What a compiled program really does, read from its optimised HLO text.

`module` reads the text, and `walk` counts how often each instruction runs. `collectives` lists the
communication (invariant "Fidelity"); `overlap` and `overwrite` find two faults of XLA:CPU.
"""
