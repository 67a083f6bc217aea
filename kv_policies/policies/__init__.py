"""The catalogue: a policy a file, a class with the method that differs."""
