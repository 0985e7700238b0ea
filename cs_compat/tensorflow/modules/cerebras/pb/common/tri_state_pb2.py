"""Switches that can be left open."""

TS_DISABLED = 1
TS_ENABLED = 2
