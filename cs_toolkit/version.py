"""The toolkit's version; artifacts and the control plane compare it."""

__version__ = "0.1.0"
