"""Errors in the data of the example programs, for both frameworks."""

from __future__ import annotations


class DataError(Exception):
    """The data cannot be used."""

    exit_code = 1
