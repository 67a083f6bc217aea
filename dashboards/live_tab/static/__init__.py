"""What the browser loads; a package, so that it is shipped."""
