"""What the data of the example programs has in common, whatever the framework is."""

from __future__ import annotations


class DataError(Exception):
    """The data cannot be used."""

    exit_code = 1
