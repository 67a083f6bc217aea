"""A model that reads the question together with what was found, and says what answers it."""
