"""What a compiled program really does, read from its optimised HLO text.

`module` reads the text, and `walk` counts how often each instruction runs. `collectives` lists the
communication (invariant "Fidelity"), `beside` what runs beside it, `seconds` and `costs` what that
takes; `overlap` and `overwrite` find two faults of XLA:CPU.
"""
