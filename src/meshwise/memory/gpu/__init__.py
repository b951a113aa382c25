"""The rules of XLA:GPU: how operators are treated, what is fused, what is held for later."""
