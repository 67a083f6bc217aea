"""Task 1: what long and repeated prompts cost, and what a prefix cache is worth."""
