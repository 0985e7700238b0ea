"""Passes over CIRH modules, one file each; `pipeline` runs them by name."""
