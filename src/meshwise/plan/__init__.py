"""What planning decided, checked, counted and written down."""
