"""Runs of an estimator on the CS system: the program, its state, and the loop around them."""
