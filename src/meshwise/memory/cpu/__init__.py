"""XLA:CPU: its margin, its rule of fusion, its scheduler."""
