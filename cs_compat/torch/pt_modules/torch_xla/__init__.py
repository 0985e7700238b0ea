"""The names of a library that programs of the original stack import; it has no others."""

from . import _XLAC as _XLAC
