"""A step whose blocks repeat is rewritten once a block: time to rewrite is flat in depth."""
