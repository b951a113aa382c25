"""How close results and predictions must come: the tolerances of invariants I1 and I2, all of them.

Source: docs/invariants.md.
"""

# After how many steps results are compared.
NUM_STEPS = 3

# x64: max |a - b| <= X64 * max(1, max |leaf|), for every leaf.
X64 = 1e-8

# fp32: norm of the error, as a share of the leaf's movement over the steps and of its norm.
FP32_OF_MOVEMENT = 1e-3
FP32_OF_NORM = 1e-5

# A leaf whose reference gradient is below this share of the global gradient norm holds rounding
# noise; an optimizer that divides by the gradient's own size makes that noise as large as it
# likes, so the leaf is excepted (fp32; in x64 only where the optimizer has no eps of 1e-3).
NEGLIGIBLE_GRADIENT = 1e-6

# Adam with this eps does not amplify the rounding noise of zero gradients.
ADAM_EPS = 1e-3

# bf16 compute with fp32 parameters.  bfloat16 has 8 bits of mantissa, and a
# sum that is reduced over 8 devices rounds up to 3 times more often than on one device, in another
# order: 3 * 2**-8 = 1.2 % of a gradient, and sums of such terms.  Norm of the error as a share of
# the movement, for the whole state together (single small leaves are mostly noise), and the loss.
BF16_OF_MOVEMENT = 3e-2
BF16_LOSS = 1e-2

# fp16 with loss scaling: the loss; flags (whether gradients were finite) must be identical.
FP16_LOSS = 1e-2

# Invariant I2: predicted against compiled peak memory of a device, and dense FLOP.
MEMORY_BELOW, MEMORY_ABOVE = 0.05, 0.30
# Stages of BERT: XLA:CPU keeps two more of the terms into which it expands the error function of an
# exact GELU, or fuses them all (measured 2026-11-24: 0.877 to 1.314).  Nobody trains on XLA:CPU, so
# no code follows it there.
BERT_MEMORY_BELOW, BERT_MEMORY_ABOVE = 0.13, 0.33
# Stages that compute activations again: XLA:CPU takes a softmax and the products around it into one
# call of its library where nothing else reads the scores (measured 2026-11-25: up to 1.416).
RECOMPUTED_MEMORY_ABOVE = 0.45
# A padded vocabulary with micro-batches: terms of the loss are taken to be there together with the
# backward pass of the attention (measured 2026-11-25: 1.308).
PADDED_MEMORY_ABOVE = 0.33
FLOP_ERROR = 0.01
