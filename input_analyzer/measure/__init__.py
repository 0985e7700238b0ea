"""Runs copies of an input function side by side and measures them."""
