"""Further import names of the original stack, for programs with weight streaming."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
