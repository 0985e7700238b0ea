"""Runs of a program, independent of its framework: the tasks of the chief and of the workers."""
