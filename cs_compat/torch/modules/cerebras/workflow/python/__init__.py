"""Tools around a run."""
