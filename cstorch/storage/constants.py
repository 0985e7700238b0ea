"""Names in the metadata of a checkpoint."""

__CSTORCH_VERSION__ = "__cstorch_version__"
"""Attribute with the version of the program that wrote it."""
