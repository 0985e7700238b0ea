"""Showing the state of a system to people."""
