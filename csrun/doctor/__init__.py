"""Checks whether a run would work here: `csrun doctor`."""
