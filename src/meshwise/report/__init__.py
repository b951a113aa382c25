"""Plans and timelines as text and pictures."""
