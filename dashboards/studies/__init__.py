"""Studies: questions people have about caches and order, answered from measured cells."""
