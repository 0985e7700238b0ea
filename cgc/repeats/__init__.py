"""Rewrites each repeating block of a step once, so that the time of rewriting does not grow with depth."""
