"""Reports of an analysis: on a terminal, and as a page for a browser."""
