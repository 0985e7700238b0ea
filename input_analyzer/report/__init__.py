"""An analysis for readers: on a terminal, as a page for a browser."""
