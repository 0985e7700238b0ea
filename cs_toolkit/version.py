"""The toolkit's version; artifacts and the control plane compare it."""

__version__ = "0.1.0"

ORIGINAL_RELEASE = "2.10.0"
"""The newest release of the original whose PyTorch interface this is; programs choose formats by it."""
