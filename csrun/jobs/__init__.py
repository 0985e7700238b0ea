"""Jobs: layout of the tasks, record, registry, supervision and state."""
