"""Version of the toolkit, which artifacts and the control plane compare."""

__version__ = "0.1.0"

# The newest original release with this PyTorch interface; programs choose formats by it.
ORIGINAL_RELEASE = "2.10.0"
