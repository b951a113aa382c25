"""Proofs for networks with few memory rows, by targets that rise from the bound.

`proof` is the way in.  Choices that are too dear at some price (`price_lines`) or in a trial
(`trials`) go; `labels` along a narrow `order` of the nodes settle the rest, with the bounds of
`frontier`.
"""
