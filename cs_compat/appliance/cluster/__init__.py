"""The original's cluster."""
