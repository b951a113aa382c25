"""Sizes of the models by name: their configurations, and counts of FLOP.

Each file has a `SizeTable` (`gpt_config("tiny", seq_len=64)` makes a configuration,
`gpt_config.names` are the sizes) and closed forms that tests hold against the models.
"""
