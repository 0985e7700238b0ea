"""Import names of the original stack, for PyTorch programs written for it; thin re-exports of the toolkit."""

from pkgutil import extend_path

# The names of TensorFlow programs are in another folder.
__path__ = extend_path(__path__, __name__)
