"""Conversion of bytes to larger units."""

from cs_toolkit.units import bytes_to_human, convert_byte_unit

__all__ = ["bytes_to_human", "convert_byte_unit"]
