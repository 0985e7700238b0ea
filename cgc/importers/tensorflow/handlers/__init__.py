"""Handlers of TensorFlow operations: those of an op of CIRH are in the file of its name."""
