"""Runs when the launchers' interpreter starts."""

from cs_compat.startup import start

start(__file__)
