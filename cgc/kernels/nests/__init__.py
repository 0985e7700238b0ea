"""Kernels for the ops that no rule of the library takes: groups, loop nests, their schedule and cost."""
