"""Findings about an input function without running it, and its export from a front end to an analyzer."""
