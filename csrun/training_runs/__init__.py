"""Training runs that are recorded in model directories: read, compared, shown."""
