"""Placement: a rectangle of the fabric for every kernel."""

from cgc.placement.model import Placement, Rect
from cgc.placement.place import place

__all__ = ["Placement", "Rect", "place"]
