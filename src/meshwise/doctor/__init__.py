"""What this installation sees, and what is wrong with it."""
