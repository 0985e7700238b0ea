"""Runs when an interpreter of this flavour starts."""

from csrun.flavours.tensorflow.startup import start

start(__file__)
