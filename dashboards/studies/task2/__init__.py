"""Task 2: what serving context by context is worth, and where it is worth nothing."""
