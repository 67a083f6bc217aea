"""`kvswarm rag`: the library and its service from a terminal."""
