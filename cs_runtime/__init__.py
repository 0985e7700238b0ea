"""A run, independent of the framework: what the chief and the workers do."""
