"""Task 3: contexts that have to be found, and an order that goes by what was found."""
