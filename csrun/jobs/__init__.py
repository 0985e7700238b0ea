"""Jobs: the layout of their tasks, their record and registry, their supervision and their state."""
