"""The figures of a running CS system, its status page and its metrics."""
