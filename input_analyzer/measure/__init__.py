"""Runs copies of an input function in parallel and measures them."""
