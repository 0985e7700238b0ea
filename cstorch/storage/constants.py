"""Names in the metadata of a checkpoint."""

# Attribute with the version of the program that wrote it.
__CSTORCH_VERSION__ = "__cstorch_version__"
