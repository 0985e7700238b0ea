"""A scheduler for Flux (flux-framework.org), in a package of its own that adds no line to the toolkit."""
