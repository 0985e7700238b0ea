"""Runs when the launchers' interpreter starts."""

from cs_compat.tensorflow.startup import start

start(__file__)
