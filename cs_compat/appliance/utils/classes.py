"""Helpers for classes."""

from cs_toolkit.subclasses import retrieve_all_subclasses as retrieve_all_subclasses
