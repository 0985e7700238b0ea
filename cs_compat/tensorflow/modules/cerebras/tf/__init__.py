"""TensorFlow programs."""

from pkgutil import extend_path

# The names of weight streaming are in another folder.
__path__ = extend_path(__path__, __name__)
