"""The rules of XLA:CPU: how operators are treated, what is fused, in which order it runs."""
