"""Which task each mesh runs when: pure tables."""
