"""Names of a library that programs of the original stack import; nothing of it is there but these."""

from . import _XLAC as _XLAC
